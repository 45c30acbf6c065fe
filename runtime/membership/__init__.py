"""The membership of a process in its application's group."""
