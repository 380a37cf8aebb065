package model

import (
	"testing"
)

func TestStart(t *testing.T) {
	m := &Model{Name: "start", Ranks: 2, Slots: 1, Program: repeat(3, Dispatch, Combine)}
	r := m.Explore(1e7)
	t.Logf("%d states, %v", r.States, r.Time)
	if r.Broken != "" {
		t.Fatalf("%s\n%s", r.Broken, r.Trace)
	}
	m.Suspicions = 1
	m.Sparse = true
	r = m.Explore(1e7)
	t.Logf("%d states, %v", r.States, r.Time)
	if r.Broken != "" {
		t.Fatalf("%s\n%s", r.Broken, r.Trace)
	}
	m.Mutation = noPoison
	r = m.Explore(1e7)
	t.Logf("%d states, %v", r.States, r.Time)
	t.Logf("%s\n%s", r.Broken, r.Trace)
}
