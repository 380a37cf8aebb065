//go:build !race

package mixed

const raceEnabled = false
