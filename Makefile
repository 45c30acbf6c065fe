# All logic is in dev.py, which works without make.
PYTHON ?= python3

.PHONY: demo test check proof soak bench bench-full lock
demo test check proof soak bench bench-full lock:
	@$(PYTHON) dev.py $@
