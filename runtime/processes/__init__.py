"""Several processes of an application on a machine: a parent process and the children."""
