"""Where the handlers' state is kept: restored first, written after the commit, read from outside."""
