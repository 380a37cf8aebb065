package wire

import "strings"

// Terms reads the words behind a key, of which there may be none: what they mean is the caller's. An error says what is
// wrong and does not quote the words, because one of them may be a key.
type Terms func(words []string) (any, error)

// grant is what a key comes with.
type grant struct {
	words string
	terms any
	since uint64 // from which reading on key and words are as they are
}

func grantOf(fields [][]byte, terms Terms) (grant, error) {
	if terms == nil {
		return grant{}, nil
	}
	words := make([]string, len(fields))
	for i, f := range fields {
		words[i] = string(f)
	}
	of, err := terms(words)
	return grant{words: strings.Join(words, " "), terms: of}, err
}

// date says since when keys are as they are, by what the reading before has given.
func (k *keys) date(before *keys, reading uint64) {
	for id, g := range k.grants {
		g.since = reading
		if before != nil && before.secrets[id] != nil && *before.secrets[id] == *k.secrets[id] && before.grants[id].words == g.words {
			g.since = before.grants[id].since
		}
		k.grants[id] = g
	}
}

// Granted returns what a key's terms were read as (nil: the ring has no use for terms), and the reading since which key and
// terms are what they are. found: there is such a key.
func (r *Keyring) Granted(id uint32) (terms any, since uint64, found bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	g, found := r.keys.grants[id]
	return g.terms, g.since, found
}

// EachTerms calls f with the terms of each key. f calls nothing of the ring.
func (r *Keyring) EachTerms(f func(terms any)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, g := range r.keys.grants {
		f(g.terms)
	}
}
