package model

import (
	"testing"
)

func TestProbe(t *testing.T) {
	dc := []Kind{Dispatch, Combine}
	cc:=[]Kind{Cancelled, Maybe}
	last := func(n int, a []Call) []Call { return append(a, Call{Dispatch,uint8(n)}, Call{Combine,uint8(n)}) }
	ms := []*Model{
		{Name: "dm S1", Ranks: 2, Slots: 1, Program: repeat(3, Dispatch, Maybe, Maybe),  MayRelease: true},
		{Name: "dm S2", Ranks: 2, Slots: 2, Program: repeat(3, Dispatch, Maybe),  MayRelease: true},
		{Name: "cancel S1 close", Ranks: 2, Slots: 1, Program: append(repeat(3, cc...), Call{Close, 0}), MayRelease: true, },
		{Name: "cancel S1", Ranks: 2, Slots: 1, Program: last(2, repeat(2, cc...)), MayRelease: true, },
		{Name: "cancel S2", Ranks: 2, Slots: 2, Program: last(2, repeat(2, cc...)), MayRelease: true, },
		{Name: "dc close", Ranks: 2, Slots: 1, Program: append(repeat(2, dc...), Call{Close, 0}) },
		{Name: "chain", Ranks: 3, Slots: 1, Program: repeat(1, dc...), Patient: true, Deaths: 1, Victims: 7},
		{Name: "rejoin", Ranks: 2, Slots: 1, Program: append(repeat(2, dc...), Call{Update,0}), Other: repeat(3, Dispatch, Combine), Rejoin: repeat(2, Dispatch, Combine), Suspicions: 1},
		{Name: "rejoin", Ranks: 2, Slots: 1, Program: append(repeat(2, dc...), Call{Update,0}), Other: repeat(3, Dispatch, Combine), Rejoin: repeat(2, Dispatch, Combine), Suspicions: 2, Deaths: 1, Victims: 2},
	}
	for _, m := range ms {
		r := m.Explore(4e6)
		t.Logf("%s: %d states, %v %v %s\n%s", m.Name,  r.States, r.Time, r.Stopped, r.Broken, r.Trace)
	}
}
