"""Pure decisions of the scheduler: no await, no clock, no environment, no I/O. Time is passed in."""
