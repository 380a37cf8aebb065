package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// PageBytes bounds the cursors of Page.
const PageBytes = 4 + message.MaxCursorBytes

// Page gives keys that begin with a prefix, from a cursor on, and the next cursor: empty to
// begin with, and at the end. The timeout is without progress; 0: Config.Timeout. A server that does not answer is left
// out.
func (c *Client) Page(prefix, cursor []byte, timeout time.Duration) (keys [][]byte, next []byte, err error) {
	server, from := uint32(0), []byte(nil)
	if len(cursor) > 0 {
		if len(cursor) < 4 || len(cursor) > PageBytes {
			return nil, nil, fmt.Errorf("%w: the cursor has %d bytes; allowed: those of a page before", ErrArgument, len(cursor))
		}
		server, from = binary.LittleEndian.Uint32(cursor), cursor[4:]
	}
	if len(prefix) > message.MaxKeyBytes {
		return nil, nil, fmt.Errorf("%w: the prefix has %d bytes; allowed: %d", ErrArgument, len(prefix), message.MaxKeyBytes)
	}
	if uint64(server) >= uint64(len(c.peers)) {
		return nil, nil, fmt.Errorf("%w: the cursor names server %d of %d", ErrArgument, server, len(c.peers))
	}
	keys, from, err = c.pageOf(c.peers[server], prefix, from, timeout)
	if errors.Is(err, ErrClosed) {
		return nil, nil, err
	}
	if len(from) == 0 {
		server++
	}
	if int(server) == len(c.peers) {
		return keys, nil, nil
	}
	return keys, append(binary.LittleEndian.AppendUint32(nil, server), from...), nil
}

// pageOf asks one server for a page. It may have no keys and a cursor: there is more to look at.
func (c *Client) pageOf(p *peer, prefix, cursor []byte, timeout time.Duration) (keys [][]byte, next []byte, err error) {
	a := &ask{payload: slices.Concat(prefix, cursor), most: 2 + message.MaxCursorBytes + message.MaxTableBytes}
	a.said.KeyBytes, a.said.Parent = uint16(len(prefix)), uint16(len(cursor))
	said, err := c.one(p, &part{code: message.List, ask: a}, timeout)
	if err != nil {
		return nil, nil, err
	}
	if keys, next, err = message.Listed(nil, said); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.name, err)
	}
	if len(next) > 0 && bytes.Equal(next, cursor) {
		return nil, nil, fmt.Errorf("%s: %w: the list does not go on", p.name, message.ErrMalformed)
	}
	return keys, next, nil
}
