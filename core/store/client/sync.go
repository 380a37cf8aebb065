package client

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store/message"
)

// Do does a request and waits for its end. At the cap it waits for a place, until its
// deadline; then it is a miss.
func (c *Client) Do(r Request) (Completion, error) {
	if err := c.check(&r); err != nil {
		return Completion{}, err
	}
	timeout := r.Timeout
	if timeout == 0 {
		timeout = c.cfg.Timeout
	}
	place, err := c.place(time.Now().Add(timeout))
	if err != nil {
		if c.isClosed() {
			return Completion{}, ErrClosed
		}
		c.counts.Capped.Add(1)
		return c.newCall(&r, place).Completion, nil
	}
	k := c.newCall(&r, place)
	k.sync = true
	c.begin(k, &r)
	if l := k.reads; l != nil {
		l.serve(k, timeout)
	}
	<-k.ended
	return k.Completion, k.Err
}

func (c *Client) place(deadline time.Time) (pool.Lease[struct{}], error) {
	place, err := c.places.Get()
	if errors.Is(err, pool.ErrWouldBlock) {
		return c.places.Wait(deadline)
	}
	return place, err
}

// Put stores a block. false: there is another one under that key, or no room, or no server.
func (c *Client) Put(key, data, parent []byte) (bool, error) {
	done, err := c.Do(Request{Op: message.Put, Keys: [][]byte{key}, Parent: parent, Buffers: [][][]byte{{data}}})
	return err == nil && done.OK[0], err
}

// Get gets a block; nil is a miss.
func (c *Client) Get(key []byte) ([]byte, error) {
	done, err := c.Do(Request{Op: message.Get, Keys: [][]byte{key}})
	if err != nil || !done.OK[0] {
		return nil, err
	}
	return done.Data[0], nil
}

// Exists says which blocks there are.
func (c *Client) Exists(keys [][]byte) ([]bool, error) {
	done, err := c.Do(Request{Op: message.Exists, Keys: keys})
	return done.OK, err
}

// Prefix is how many blocks of a chain there are from its beginning without a gap.
func (c *Client) Prefix(keys [][]byte) (int, error) {
	found, err := c.Exists(keys)
	n := 0
	for n < len(found) && found[n] {
		n++
	}
	return n, err
}

// Delete deletes blocks, and says how many there were.
func (c *Client) Delete(keys [][]byte) (n int, err error) {
	done, err := c.Do(Request{Op: message.Delete, Keys: keys})
	for _, yes := range done.OK {
		if yes {
			n++
		}
	}
	return n, err
}

// Touch says that blocks will be wanted.
func (c *Client) Touch(keys [][]byte) error {
	_, err := c.Do(Request{Op: message.Touch, Keys: keys})
	return err
}

// Pin keeps blocks for a time, and says which there are.
func (c *Client) Pin(keys [][]byte, hold time.Duration) ([]bool, error) {
	done, err := c.Do(Request{Op: message.Pin, Keys: keys, For: hold})
	return done.OK, err
}
