package client

import (
	"crypto/sha256"
	"encoding/binary"
)

// serverOf is the number of the server that has a key: that of the highest hash of server
// and key. So a server that is added or taken out moves only its own share of the keys.
func (c *Client) serverOf(key []byte) int {
	if len(c.peers) == 1 {
		return 0
	}
	best, most := 0, uint64(0)
	var room [512 + 256]byte
	for i, p := range c.peers {
		said := append(append(append(room[:0], p.name...), 0), key...)
		sum := sha256.Sum256(said)
		if score := binary.LittleEndian.Uint64(sum[:]); i == 0 || score > most {
			best, most = i, score
		}
	}
	return best
}
