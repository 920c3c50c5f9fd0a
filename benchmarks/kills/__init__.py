"""Small runs, killed with SIGKILL at chosen and random moments and started again, against one that never was.

`python -m benchmarks.kills --kills 200` is the campaign, `tests/end_to_end/test_kills.py` a short one. What a moment is
is seen from outside, in the files of the run: nothing in the program helps.
"""
