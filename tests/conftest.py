"""What all tests share: how Hypothesis searches. Marks, time limits and warnings are set in ``pyproject.toml``."""

import os

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: time is bounded per test, not per example. `check` finds the same every time;
# KEYLANES_HYPOTHESIS=search looks further, for an evening.
_quiet = [HealthCheck.too_slow]
settings.register_profile("check", deadline=None, derandomize=True, database=None, suppress_health_check=_quiet)
settings.register_profile("search", deadline=None, max_examples=5_000, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("KEYLANES_HYPOTHESIS", "check"))
