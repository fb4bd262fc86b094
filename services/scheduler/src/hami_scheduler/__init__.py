"""Scheduler extender: filter, bind, and the ledger of slices."""
