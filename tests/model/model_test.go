package model

import (
	"testing"
	"os"
)

func TestProbe(t *testing.T) {
	dc := []Kind{Dispatch, Combine}
	dcc := []Kind{Dispatch, Combine, Combine}
	ms := []*Model{
		{Name: "dc S1", Ranks: 2, Slots: 1, Program: repeat(4, dc...), Sparse: true},
		{Name: "dc S2", Ranks: 2, Slots: 2, Program: repeat(4, dc...), Sparse: true},
		{Name: "ddcc S2", Ranks: 2, Slots: 2, Program: pairs(4, dc...), Sparse: true},
		{Name: "ssrr S2", Ranks: 2, Slots: 2, Program: pairs(4, Send, Recv, CombineSend, CombineRecv), Sparse: true},
		{Name: "dcc S1", Ranks: 2, Slots: 1, Program: repeat(3, dcc...), Sparse: true},
		{Name: "dcc S2", Ranks: 2, Slots: 2, Program: repeat(3, dcc...), Sparse: true},
		{Name: "d S1", Ranks: 2, Slots: 1, Program: repeat(4, Dispatch), Sparse: true},
		{Name: "d S2", Ranks: 2, Slots: 2, Program: repeat(4, Dispatch), Sparse: true},
		{Name: "s S1", Ranks: 2, Slots: 1, Program: repeat(4, Send), Sparse: true},
		{Name: "dm S1", Ranks: 2, Slots: 1, Program: repeat(3, Dispatch, Maybe, Maybe), Sparse: true, MayRelease: true},
		{Name: "dm S2", Ranks: 2, Slots: 2, Program: repeat(3, Dispatch, Maybe), Sparse: true, MayRelease: true},
		{Name: "cancel S1", Ranks: 2, Slots: 1, Program: append(repeat(3, Cancelled, Maybe), Call{Close, 0}), MayRelease: true},
		{Name: "cancel S2", Ranks: 2, Slots: 2, Program: append(repeat(3, Cancelled, Maybe), Call{Close, 0}), MayRelease: true},
		{Name: "R3 dc", Ranks: 3, Slots: 1, Program: repeat(1, dc...)},
		{Name: "R3 dc", Ranks: 3, Slots: 1, Program: repeat(2, dc...)},
	}
	for _, m := range ms {
	  for _, f := range []int{0,1,2,3} {
		m.Suspicions, m.Deaths, m.Victims = 0,0,0
		if f == 1 { m.Suspicions = m.Ranks }
		if f == 2 { m.Deaths, m.Victims = 1, 1 }
		if f == 3 { m.Suspicions, m.Deaths, m.Victims = m.Ranks, 1, 1 }
		r := m.Explore(3e6)
		t.Logf("%s %d: %d states, %v %v %s", m.Name, f, r.States, r.Time, r.Stopped, r.Broken)
		if r.Broken != "" && os.Getenv("TR") != "" {
			t.Fatalf("%s\n%s", r.Broken, r.Trace)
		}
	  }
	}
}
