//go:build race

package ep_test

const raceEnabled = true
