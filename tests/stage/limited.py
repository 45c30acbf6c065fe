"""Settings with other limits than those that users have, so that tests reach a limit with few records."""

from dataclasses import fields, replace
from typing import Any, Final

from keylanes import Settings
from keylanes.runtime.limits import Limits

LIMITS: Final = frozenset(field.name for field in fields(Limits))


class Limited(Settings, frozen=True, kw_only=True):
    """Settings whose limits are given."""

    given: Limits

    @property
    def limits(self) -> Limits:
        """The given ones."""
        return self.given


def settings_of(**values: Any) -> Settings:
    """``Settings.of``, where fields of ``Limits`` may stand beside those of ``Settings``."""
    limits = {name: values.pop(name) for name in LIMITS & values.keys()}
    settings = Settings.of(**values)
    return Limited.of(**values, given=replace(settings.limits, **limits)) if limits else settings
