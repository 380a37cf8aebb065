package testenv

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

var ofLacking = Mutation{
	Name: "what is required may lack", File: "testenv.go", From: "if need == what", To: "if need == what && false",
	Args: []string{"-run", "^TestLacking$"}, Quick: true,
}

func TestMutations(t *testing.T) { RunMutations(t, []Mutation{ofLacking}) }

// TestOverlay: two files of one name in two packages do not take each other's place.
func TestOverlay(t *testing.T) {
	var list struct{ Replace map[string]string }
	text, err := os.ReadFile(overlay(t, map[string][]byte{"tier.go": []byte("here"), "../sys/tier.go": []byte("there")}))
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil || len(list.Replace) != 2 {
		t.Fatal(err, list)
	}
	for path, edited := range list.Replace {
		text, err := os.ReadFile(edited)
		if err != nil || (string(text) == "there") != strings.HasSuffix(path, "/sys/tier.go") {
			t.Errorf("%s has %q, %v", path, text, err)
		}
	}
}

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
