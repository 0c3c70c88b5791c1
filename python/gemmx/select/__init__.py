"""Selection: which Plan runs a Problem on a Device. Decided once per Problem, remembered by the C++ plan cache.

profiles.py     devices by name and their arithmetic rates
calibration.py  constants of the time model, with the measurement each comes from
model.py        Plan -> microseconds, analytically
tables.py       measured plans per GPU model, which overrule the model
selector.py     choose(problem, device) -> Plan
explain.py      the same decision in words and numbers
"""
