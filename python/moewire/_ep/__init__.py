"""Dispatch and combine: arguments, plans, results, in the packed and in the flat form."""
