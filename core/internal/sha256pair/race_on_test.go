//go:build race

package sha256pair

const raceEnabled = true
