package boundaries

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// coined are words that no identifier has, with what to say instead: the field has a word for each, or plain English.
// docs/glossary.md has the words of this project.
var coined = map[string]string{
	"verdict": "result, decision, plan", "verdicts": "results", "judge": "check", "judged": "checked", "judges": "checks", "judging": "checking",
	"victim": "target, candidate for eviction", "victims": "targets", "fate": "outcome", "fates": "outcomes",
	"kick": "wakeup", "kicks": "wakeups", "patience": "timeout, limit", "tally": "counters", "tallies": "counters",
	"stranger": "unknown or unauthenticated client", "strangers": "unknown or unauthenticated clients",
	"hear": "read, observe", "hears": "observes", "hearsay": "report", "near": "local", "far": "remote",
	"spread": "placement, percentiles, distribute", "spreads": "placements", "bare": "without what is missing", "wide": "the width",
	"told": "notified, reported, sent", "bury": "erase, drop", "buried": "erased, dropped", "grave": "erasure", "graves": "erasures",
	"ghost": "stray", "ghosts": "stray", "doom": "mark as dying", "doomed": "dying", "heir": "successor",
	"owed": "deferred, pending", "owes": "has pending", "accuse": "suspect, blame", "trial": "probe, run", "trials": "runs",
	"crowd": "many peers", "guest": "pending connection", "lobby": "listener", "council": "agreement", "roster": "participants",
	"farewell": "shutdown", "corpse": "what a process left", "loan": "lease", "seat": "wait timestamp",
}

// given are identifiers with such a word that are public: a setting names the place that a NIC is to be near to.
var given = []string{"rdma_near", "MOEWIRE_RDMA_NEAR"}

// placeSettings are the packages that read this setting.
var placeSettings = []string{"capi", "core/node", "core/transport/verbs"}

// The two kinds of boundaries between the words of an identifier in camel case: noRoom, TCPConn.
var (
	afterLower   = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	afterAcronym = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

// wordsOf are an identifier's words in lower case: noRoomIsTold and no_room_is_told have four.
func wordsOf(identifier string) []string {
	apart := afterAcronym.ReplaceAllString(afterLower.ReplaceAllString(identifier, "${1}_${2}"), "${1}_${2}")
	return strings.FieldsFunc(strings.ToLower(apart), func(r rune) bool { return r < 'a' || r > 'z' })
}

// checkWords returns one sentence for each identifier of a file that has a coined word.
func checkWords(name string, content []byte) (wrong []string) {
	seen := map[string]bool{}
	for _, id := range identifiersOf(name, content) {
		if seen[id] || slices.Contains(given, id) {
			continue
		}
		seen[id] = true
		for _, word := range wordsOf(id) {
			if say, is := coined[word]; is && !(word == "near" && slices.Contains(placeSettings, path.Dir(name))) {
				wrong = append(wrong, fmt.Sprintf("%s: the identifier %s has the word %q, say: %s", name, id, word, say))
			}
		}
	}
	return wrong
}

// notCode is what identifiers of Python and C are not looked for in: texts, comments.
var (
	notPython  = regexp.MustCompile(`(?s)""".*?"""|'''.*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*`)
	notC       = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`)
	identifier = regexp.MustCompile(`[A-Za-z_]\w*`)
)

// identifiersOf are the names in a source file; those of files in no language known here are none.
func identifiersOf(name string, content []byte) []string {
	switch path.Ext(name) {
	case ".go":
		return identifiersOfGo(content)
	case ".py":
		return identifier.FindAllString(notPython.ReplaceAllString(string(content), " "), -1)
	case ".c", ".h", ".cc", ".cu", ".cuh":
		return identifier.FindAllString(notC.ReplaceAllString(string(content), " "), -1)
	}
	return nil
}

func identifiersOfGo(content []byte) (names []string) {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(content)), content, func(token.Position, string) {}, 0)
	for {
		switch _, tok, text := s.Scan(); tok {
		case token.EOF:
			return names
		case token.IDENT:
			names = append(names, text)
		}
	}
}

// checkAllWords looks at all sources of the tree, and counts them.
func checkAllWords(tree fs.FS) (wrong []string, files int, err error) {
	err = eachFile(tree, []string{".go", ".py", ".c", ".h", ".cc", ".cu", ".cuh"}, func(name string, content []byte) {
		files++
		wrong = append(wrong, checkWords(name, content)...)
	})
	return wrong, files, err
}

// eachFile visits the files of the tree whose names end so, without those of tools and what was built.
func eachFile(tree fs.FS, ends []string, visit func(name string, content []byte)) error {
	return fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && (base == "build" || base == "testdata" || base != "." && base != ".ci" && strings.HasPrefix(base, ".")):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains(ends, path.Ext(name)):
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		visit(name, content)
		return err
	})
}
