"""Why a run has no figures."""


class Skipped(Exception):
    """An arm cannot run here; the text says why."""


class WrongRun(Exception):
    """A run that lost, doubled or reordered records: its figures are void."""
