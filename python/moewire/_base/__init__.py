"""What everything else may use: texts of refusals, checks of arguments, the device's interface."""
