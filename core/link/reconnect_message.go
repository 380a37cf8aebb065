package link

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
)

// reconnectMessage is what the two sides of a link that broke tell each other,
// little-endian:
//
//	 0  1  kind
//	 1  8  number of the endpoint
//	 9  8  messages that have arrived without a gap
//	17  8  of these, released
//	25     offer; only the first kind has what follows the number
type reconnectMessage struct {
	kind           uint8
	number         uint64
	have, released uint64
	offer          []byte
}

// Kinds of reconnect messages.
const (
	reconnectOffer   = iota + 1 // an endpoint
	reconnectLinked             // the endpoint of that number is connected
	reconnectRefused            // the link is not reconnected
)

const (
	reconnectShort = 9
	reconnectFixed = 25
	// MaxReconnectBytes bounds what Reconnecting.Send is given.
	MaxReconnectBytes = reconnectFixed + MaxOfferBytes
)

func (m *reconnectMessage) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, reconnectFixed+len(m.offer)), m.kind)
	b = le.AppendUint64(b, m.number)
	if m.kind != reconnectOffer {
		return b
	}
	b = le.AppendUint64(b, m.have)
	b = le.AppendUint64(b, m.released)
	return append(b, m.offer...)
}

func parseReconnectMessage(b []byte) (m reconnectMessage, err error) {
	le := binary.LittleEndian
	if len(b) < reconnectShort || len(b) > MaxReconnectBytes {
		return m, fmt.Errorf("%w: reconnect message of %d bytes", domain.ErrMetadata, len(b))
	}
	m.kind, m.number = b[0], le.Uint64(b[1:])
	switch m.kind {
	case reconnectLinked, reconnectRefused:
		if len(b) == reconnectShort {
			return m, nil
		}
	case reconnectOffer:
		if len(b) >= reconnectFixed {
			m.have, m.released = le.Uint64(b[9:]), le.Uint64(b[17:])
			m.offer = append([]byte(nil), b[reconnectFixed:]...)
			return m, nil
		}
	}
	return m, fmt.Errorf("%w: reconnect message of kind %d with %d bytes", domain.ErrMetadata, m.kind, len(b))
}
