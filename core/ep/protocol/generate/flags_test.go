package main

import (
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
)

// distinct fails if a flag is not one bit, or if two flags share it.
func distinct(t *testing.T, flags map[string]uint64) {
	owner := map[uint64]string{}
	for name, bit := range flags {
		require.Equal(t, 1, bits.OnesCount64(bit), "%s is %#x", name, bit)
		require.Empty(t, owner[bit], "%s and %s are both %#x", name, owner[bit], bit)
		owner[bit] = name
	}
}

// flagsField finds the flags of a struct, with the names that its comment lists.
var (
	flagsField = regexp.MustCompile(`uint32_t flags;\s*/\* ((?:MW_\w+\*,? ?)+)`)
	family     = regexp.MustCompile(`MW_\w+_\*`)
)

// TestFlagsOfStructs: the flags that one argument carries share no bit. The header says which
// families these are.
func TestFlagsOfStructs(t *testing.T) {
	a, err := readABI(root)
	require.NoError(t, err)
	found := 0
	for _, header := range []string{"moewire.h", "moewire_fabric.h", "moewire_routing.h"} {
		text, err := os.ReadFile(filepath.Join(root, "capi/include", header))
		require.NoError(t, err)
		found += strings.Count(string(text), "uint32_t flags;")
		for _, field := range flagsField.FindAllStringSubmatch(string(text), -1) {
			found--
			distinct(t, familiesOf(t, a, family.FindAllString(field[1], -1)))
		}
	}
	require.Zero(t, found, "a comment of flags names no family")
}

func familiesOf(t *testing.T, a abi, families []string) map[string]uint64 {
	flags := map[string]uint64{}
	for _, f := range families {
		before := len(flags)
		for _, c := range a.constants {
			if strings.HasPrefix(c[1], strings.TrimSuffix(f, "*")) {
				bit, err := strconv.ParseUint(pythonValue(c[2]), 0, 32)
				require.NoError(t, err)
				flags[c[1]] = bit
			}
		}
		require.Greater(t, len(flags), before, "no flag begins with %s", f)
	}
	return flags
}

// TestFlagsOfOperations: the flags of protocol.Flags share no bit, and ranks agree on some of them.
func TestFlagsOfOperations(t *testing.T) {
	from, err := open(root)
	require.NoError(t, err)
	flags, all := map[string]uint64{}, uint64(0)
	for _, b := range from.protocol.blocks() {
		for _, c := range b.consts {
			if strings.HasPrefix(c.name, "Flag") && c.name != "FlagsAgreed" {
				flags[c.name], err = strconv.ParseUint(c.value, 0, 32)
				require.NoError(t, err)
				all |= flags[c.name]
			}
		}
	}
	distinct(t, flags)
	require.GreaterOrEqual(t, len(flags), 13)
	require.Zero(t, uint64(protocol.FlagsAgreed)&^all)
	const own = protocol.FlagHasMore | protocol.FlagPreReduce | protocol.FlagFill | protocol.FlagRemote | protocol.FlagSplit | protocol.FlagRest
	require.Zero(t, protocol.FlagsAgreed&own, "a rank's own choice")
	for d := protocol.BF16; d < protocol.Unknown; d++ {
		require.Zero(t, d.Flags()&^protocol.FlagsAgreed, d)
	}
}
