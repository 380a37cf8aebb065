//go:build !race

package multihost

const raceEnabled = false
