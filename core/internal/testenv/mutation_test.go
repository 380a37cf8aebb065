package testenv

import (
	"strings"
	"testing"
)

var ofLacking = Mutation{
	Name: "what is required may lack", File: "testenv.go", From: "if need == what", To: "if need == what && false",
	Args: []string{"-run", "^TestLacking$"}, Quick: true,
}

func TestMutations(t *testing.T) { RunMutations(t, []Mutation{ofLacking}) }

// TestMutationsThatRot: an edit that does not apply, that no test notices, or that only
// the compiler notices, is a failure.
func TestMutationsThatRot(t *testing.T) {
	for from, want := range map[string]string{
		"not there": "does not apply", "need": "not one", ofLacking.To: "does not apply", "": "not one",
	} {
		m := ofLacking
		m.From = from
		if _, wrong := m.edited(); !strings.Contains(wrong, want) {
			t.Errorf("%q: %q", from, wrong)
		}
	}
	same := ofLacking
	same.To = same.From
	if _, wrong := same.edited(); wrong == "" {
		t.Error("an edit that changes nothing was taken")
	}
	for to, fails := range map[string]bool{
		ofLacking.To: false, "if what == need": true, "if nonsense == what": true,
	} {
		m := ofLacking
		m.To = to
		text, wrong := m.edited()
		r := &recorder{TB: t}
		func() {
			defer func() { _ = recover() }()
			m.mustBeNoticed(r, text)
		}()
		if wrong != "" || r.failed != fails {
			t.Errorf("%q: failed is %v; %s", to, r.failed, wrong)
		}
	}
}
