package link

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// letter is what the two sides of a link that broke tell each other,
// little-endian:
//
//	 0  1  kind
//	 1  8  number of the endpoint
//	 9  8  messages that have arrived without a gap
//	17  8  of these, released
//	25     offer; only the first kind has what follows the number
type letter struct {
	kind           uint8
	number         uint64
	have, released uint64
	offer          []byte
}

// Kinds of letters.
const (
	letterOffer   = iota + 1 // an endpoint
	letterLinked             // the endpoint of that number is connected
	letterRefused            // the link is not made again
)

const (
	letterShort = 9
	letterFixed = 25
	// MaxLetterBytes bounds what Remaking.Say is given.
	MaxLetterBytes = letterFixed + MaxOfferBytes
)

func (m *letter) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, letterFixed+len(m.offer)), m.kind)
	b = le.AppendUint64(b, m.number)
	if m.kind != letterOffer {
		return b
	}
	b = le.AppendUint64(b, m.have)
	b = le.AppendUint64(b, m.released)
	return append(b, m.offer...)
}

func parseLetter(b []byte) (m letter, err error) {
	le := binary.LittleEndian
	if len(b) < letterShort || len(b) > MaxLetterBytes {
		return m, fmt.Errorf("%w: letter of %d bytes", transport.ErrMetadata, len(b))
	}
	m.kind, m.number = b[0], le.Uint64(b[1:])
	switch m.kind {
	case letterLinked, letterRefused:
		if len(b) == letterShort {
			return m, nil
		}
	case letterOffer:
		if len(b) >= letterFixed {
			m.have, m.released = le.Uint64(b[9:]), le.Uint64(b[17:])
			m.offer = append([]byte(nil), b[letterFixed:]...)
			return m, nil
		}
	}
	return m, fmt.Errorf("%w: letter of kind %d with %d bytes", transport.ErrMetadata, m.kind, len(b))
}
