//go:build race

package libibverbs

const raceEnabled = true
