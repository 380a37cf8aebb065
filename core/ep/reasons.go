package ep

// Why an engine's events say that a rank was lost, has left, or is waited for.
const (
	WhyEnded    = "its process has ended"
	WhySilent   = "no word comes from it any more"
	WhyTimedOut = "it did not come before the deadline"
	WhyGone     = "it left the group, or another rank took it out"
	WhyLeft     = "it closed its buffer, or updates the membership"
	WhyNoData   = "its data has not come"
	WhyStillOut = "it still reads what was combined before"
)
