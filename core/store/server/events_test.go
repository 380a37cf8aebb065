package server

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
)

var start = time.Unix(1000, 0)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func TestRareLines(t *testing.T) {
	var r rare
	require.Equal(t, "a", r.line(start, "a"))
	for range 1000 {
		require.Empty(t, r.line(after(9.9), "b"))
	}
	require.Equal(t, "c (and 1000 more that were not logged)", r.line(after(10), "c"))
	require.Empty(t, r.line(after(19), "d"))
	require.Equal(t, "e (and 1 more that were not logged)", r.line(after(30), "e"))
	require.Equal(t, "f", r.line(after(40), "f"))
}

// A spell has two lines, however much goes wrong in it.
func TestSpells(t *testing.T) {
	var c Counters
	var lines []string
	states := make([]spell, len(spells))
	look := func(seconds float64) {
		c.watch(after(seconds), states, func(line string) { lines = append(lines, line) })
	}
	look(0)
	require.Empty(t, lines)
	for s := range 20 {
		for range 50 {
			c.replied(&reply{code: message.Put, status: message.Full})
			c.replied(&reply{code: message.Get, status: message.OK})
		}
		look(float64(s))
	}
	require.Equal(t, []string{"puts are refused: no room can be made"}, lines)
	look(28)
	require.Len(t, lines, 1, "it may go on")
	look(29)
	look(100)
	require.Equal(t, "puts find room again: it was 1000 in 19s", strings.Join(lines[1:], "\n"))
	c.replied(&reply{code: message.Commit, status: message.Full})
	look(101)
	look(102)
	look(120)
	require.Equal(t, "puts find room again: it was 1 in 0s", lines[3])
	require.Len(t, lines, 4)
}

// Each count has its own spell.
func TestSpellsCount(t *testing.T) {
	for i, raise := range []func(c *Counters){
		func(c *Counters) { c.replied(&reply{code: message.Allocate, status: message.Full}) },
		func(c *Counters) { c.replied(&reply{code: message.Put, status: message.Quota}) },
		func(c *Counters) { c.replied(&reply{code: message.Commit, status: message.Failed}) },
		func(c *Counters) { c.replied(&reply{code: message.Get, status: message.WouldBlock}) },
		func(c *Counters) { c.Denied.Add(1) },
		func(c *Counters) { c.BadPuts.Add(1) },
		func(c *Counters) { c.BadReads.Add(1) },
		func(c *Counters) { c.Changed.Add(1) },
		func(c *Counters) { c.ReadFailed.Add(1) },
	} {
		var c Counters
		var lines []string
		raise(&c)
		c.watch(start, make([]spell, len(spells)), func(line string) { lines = append(lines, line) })
		require.Equal(t, []string{spells[i].begins}, lines)
	}
}
