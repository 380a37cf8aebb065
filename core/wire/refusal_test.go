package wire

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func olderRefusal(t *testing.T, c Config) []byte {
	client := c
	client.Protection = ProtectEncrypt
	a, b := handshakes(t, client, c)
	_, out, err := b.Step(a.Start())
	require.ErrorIs(t, err, ErrProtection)
	return out
}

// WF1: a refusal with a reason that this version does not know.
func TestUnknownReason(t *testing.T) {
	config := testConfig(t)
	a, _ := handshakes(t, config, config)
	answer := helloFrame{kind: kindRefusal, protection: ProtectDigest, flags: flagFromServer, keyID: 7}
	a.Start()
	answer.client = a.hello.client
	out := answer.encode()
	binary.LittleEndian.PutUint16(out[LengthBytes+104:], 999)
	a.handshakeSigner().sign(out, epoch.UnixNano())
	_, _, err := a.Step(out)
	require.ErrorIs(t, err, ErrDeclined)
}
