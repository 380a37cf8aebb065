package boundaries

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxPerThousand is how often a kind of word may occur in 1000 lines of comments, or of documents: the subject of a
// sentence is a thing in the code, and its name.
const maxPerThousand = 6

// vague are the words of each kind that stand in place of such a name.
var vague = map[string]*regexp.Regexp{
	"who, whom, whose":               regexp.MustCompile(`(?i)\b(who|whom|whose)\b`),
	"nobody, somebody, everybody...": regexp.MustCompile(`(?i)\b(no|some|every|any)(body| ?one)\b`),
}

// What is a comment: in Python a docstring, too.
var (
	commentPython = regexp.MustCompile(`(?s)""".*?"""|(?m:#.*$)`)
	commentC      = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
)

// sentences are the lines with text for people: all of a document, the comments of a source.
func sentences(name string, content []byte) (lines []string) {
	text := []string{string(content)}
	switch path.Ext(name) {
	case ".py":
		text = commentPython.FindAllString(text[0], -1)
	case ".md":
	default:
		text = commentC.FindAllString(text[0], -1)
	}
	for _, line := range strings.Split(strings.Join(text, "\n"), "\n") {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// checkSentences returns one sentence for each language in which vague words are too frequent, and the number of lines
// in each. It passes over languages with fewer lines than least.
func checkSentences(tree fs.FS, least int) (wrong []string, lines map[string]int, err error) {
	lines, found := map[string]int{}, map[string]map[string]int{}
	err = eachFile(tree, []string{".go", ".py", ".c", ".h", ".cu", ".cuh", ".md"}, func(name string, content []byte) {
		end := path.Ext(name)
		if found[end] == nil {
			found[end] = map[string]int{}
		}
		for _, line := range sentences(name, content) {
			lines[end]++
			for kind, words := range vague {
				found[end][kind] += len(words.FindAllString(line, -1))
			}
		}
	})
	for end, n := range lines {
		for kind := range vague {
			if m := found[end][kind]; n >= least && m*1000 >= maxPerThousand*n {
				wrong = append(wrong, fmt.Sprintf("%s: %d of %s in %d lines of comments, fewer than %d in 1000 are allowed", end, m, kind, n, maxPerThousand))
			}
		}
	}
	slices.Sort(wrong)
	return wrong, lines, err
}
