"""What every benchmark here stands on: a broker of its own, its source records, the check of a run, rounds and results;
and for long ones a book, driver processes and their topics.

Arms alternate in rounds, so that a machine that changes its speed changes it for all of them.
"""
