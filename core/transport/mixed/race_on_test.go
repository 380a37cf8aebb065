//go:build race

package mixed

const raceEnabled = true
