"""PURE. Who takes part, who shall own what, and what is to be done next. See the README in this room."""
