package blocks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// known is what is certain of a key. A version is a number from 1 on; 0 means that there is no block.
type known struct {
	name             string
	latest           int          // the last version that was ever sent
	may              map[int]bool // what a get may give now
	after            map[int]bool // what a get may give in the next life
	deletedUnflushed map[int]bool // versions that were deleted: the delete may be lost in a kill, until it is flushed
	dead             int          // versions up to here were deleted, and that was flushed
	deleted          int          // versions up to here were deleted
	resting          bool         // a call of this life has failed, and may be done later: the key is left alone until the next life
}

func set(versions ...int) map[int]bool {
	s := map[int]bool{}
	for _, v := range versions {
		s[v] = true
	}
	return s
}

func newKnown(name string) *known {
	return &known{name: name, may: set(0), after: set(0), deletedUnflushed: set()}
}

// payload is a version's bytes, made of nothing but its name.
func (k *known) payload(version, most int) []byte {
	rng := rand.New(rand.NewPCG(uint64(version), uint64(len(k.name))<<32+uint64(k.name[len(k.name)-1])))
	data, n := fmt.Appendf(nil, "%s/%d/", k.name, version), rng.IntN(most)
	for len(data) < n {
		data = binary.LittleEndian.AppendUint64(data, rng.Uint64())
	}
	return data
}

// versionOf is what bytes are; -1 if nothing like them was ever put.
func (k *known) versionOf(data []byte, most int) int {
	if data == nil {
		return 0
	}
	said := strings.SplitN(string(data[:min(len(data), 40)]), "/", 3)
	if len(said) == 3 && said[0] == k.name {
		v, err := strconv.Atoi(said[1])
		if err == nil && 0 < v && v <= k.latest && bytes.Equal(data, k.payload(v, most)) {
			return v
		}
	}
	return -1
}

// certain is the one thing that a key may be.
func (k *known) certain() (version int, is bool) {
	for v := range k.may {
		version = v
	}
	return version, len(k.may) == 1
}

func (k *known) wasPut(version int, ok bool) {
	if !ok {
		k.may[version], k.after[version], k.resting = true, true, true
		return
	}
	for v := range k.after {
		if v != 0 && v != version {
			k.deletedUnflushed[v] = true
		}
	}
	k.may, k.after = set(version), set(version)
}

// wasDeleted is for a delete that a server has answered. lossy: the disk may have failed to do it.
func (k *known) wasDeleted(ok, lossy bool) {
	if !ok {
		k.may[0], k.after[0], k.resting = true, true, true
		return
	}
	if lossy {
		for v := range k.after {
			k.deletedUnflushed[v] = true
		}
	}
	k.may, k.after, k.deleted = set(0), set(0), k.latest
	for v := range k.deletedUnflushed {
		k.after[v] = true
	}
}

// wasFlushed is for what was certain before a flush began.
func (k *known) wasFlushed() {
	if k.resting {
		return
	}
	k.deletedUnflushed, k.after, k.dead = set(), map[int]bool{}, k.deleted
	for v := range k.may {
		k.after[v] = true
	}
}

// found begins the next life with what was found.
func (k *known) found(version int) {
	k.may, k.after, k.deletedUnflushed, k.resting = set(version), set(version), set(), false
	k.deleted = k.dead // what was not flushed may be undone
}
