package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func loud(words []string) (any, error) {
	if len(words) > 0 && words[0] == "bad" {
		return nil, errors.New("not so")
	}
	return strings.ToUpper(strings.Join(words, "+")), nil
}

// TestTerms: what stands behind a key is the caller's to understand, and dated by when key or words changed last.
func TestTerms(t *testing.T) {
	now := ""
	r, err := NewKeyringWithTerms(func() ([]byte, error) {
		if now == "" {
			now = "1 " + otherKey + "  read  x # remark\n2 " + otherKey2
		}
		return []byte(now), nil
	}, loud)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Reading())
	for reading, c := range []struct {
		text         string
		terms        [2]any
		since        [2]uint64
		first, other bool
	}{
		{"", [2]any{"READ+X", ""}, [2]uint64{1, 1}, true, true},
		{"2 " + otherKey2 + "\n1 " + otherKey + " read x", [2]any{"READ+X", ""}, [2]uint64{1, 1}, true, true},
		{"1 " + otherKey + " read y\n2 " + otherKey2, [2]any{"READ+Y", ""}, [2]uint64{3, 1}, true, true},
		{"1 " + otherKey2 + " read y", [2]any{"READ+Y", nil}, [2]uint64{4, 0}, true, false},
		{"1 " + otherKey2 + " read y #x#\n#2 a#b\n2 " + otherKey2, [2]any{"READ+Y", ""}, [2]uint64{4, 5}, true, true},
	} {
		if reading > 0 {
			now = c.text
			require.NoError(t, r.Reload())
		}
		require.EqualValues(t, reading+1, r.Reading())
		for i, there := range []bool{c.first, c.other} {
			terms, since, found := r.Granted(uint32(i + 1))
			require.Equal(t, there, found)
			require.Equal(t, c.terms[i], terms)
			require.Equal(t, c.since[i], since, c.text)
		}
	}
	num := 0
	r.EachTerms(func(any) { num++ })
	require.Equal(t, 2, num)
	for _, bad := range []string{"1 " + otherKey + " bad", "1 bad " + otherKey, "1 " + otherKey + " salt=team#1 read"} {
		now = bad
		require.ErrorContains(t, r.Reload(), "line 1")
	}
	require.EqualValues(t, 5, r.Reading(), "an error changes nothing")
	r.Close()
	_, _, found := r.Granted(1)
	require.False(t, found)
	require.EqualValues(t, 6, r.Reading())

	fixed, err := NewFixedKeyring([]byte("7 "+otherKey+" a"), loud)
	require.NoError(t, err)
	terms, _, _ := fixed.Granted(7)
	require.Equal(t, "A", terms)
	_, err = NewFixedKeyring([]byte("7 "+otherKey+" a"), nil)
	require.ErrorContains(t, err, "3 fields")
	_, since, found := GenerateKeyring().Granted(1)
	require.True(t, found && since == 0)
}
