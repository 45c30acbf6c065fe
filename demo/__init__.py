"""The main job on real input: a year of flights, run, proved and drawn."""
