"""The application of a command: an App in a module, or an application by its name on a broker."""

import importlib
import os
import sys
from typing import NamedTuple

from ..errors import SettingsError
from ..runtime.app import App
from ..runtime.settings import Settings


class Named(NamedTuple):
    """The application of a command: its name, the broker's address, and the settings to connect with."""

    app: str
    address: str
    settings: Settings


def load_app(target: str) -> App:
    """The App under the name ``module:name``. Modules of the working directory are found, too. Raises SettingsError."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise SettingsError(f"an application is named as module:app, e.g. flights:app; seen {target!r}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and one of its own imports is missing
        raise SettingsError(f"no module {module_name!r} in {here} or among what is installed") from None
    found = getattr(module, name, None)
    if not isinstance(found, App):
        raise SettingsError(f"{target}: {name!r} is no keylanes.App of that module; seen {type(found).__name__}")
    return found


def application_of(command: str, target: str | None, app: str | None, broker: str | None) -> Named:
    """The application of a command that takes MODULE:APP, or ``--app`` with ``--broker``. Raises SettingsError."""
    if (target is None) == (app is None):
        raise SettingsError(f"{command}: give either MODULE:APP, or --app NAME with --broker ADDRESS")
    loaded = None if target is None else load_app(target)
    address = broker or (loaded.broker if loaded is not None and isinstance(loaded.broker, str) else None)
    if address is None:
        raise SettingsError(f"{command}: the broker's address is not known; give --broker ADDRESS")
    settings = Settings.from_env() if loaded is None else loaded.settings
    return Named((app or "") if loaded is None else loaded.name, address, settings)
