package server

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
)

// errRevoked is why a connection ends that was begun with a key, or with rights, that are no more.
var errRevoked = errors.New("its key, or what the key may do, was changed in the key file")

// permit looks at whether a key may ask that of a namespace; without a digest the namespace was looked at before. It returns why
// not, which is counted; "": it may. This is the one place that says so.
func (s *Server) permit(key uint32, r *rights.Rights, code message.Code, digest *[32]byte) (whyNot string) {
	switch {
	case !r.Asks(code):
		whyNot = fmt.Sprintf("key %d may read only", key)
	case digest != nil && !r.Opens(*digest):
		whyNot = fmt.Sprintf("key %d may not open namespaces of this salt", key)
	default:
		return ""
	}
	s.counters.Denied.Add(1)
	return whyNot
}

// rightsOf are those of a key at this moment, and since which reading of the key file key and rights are as they are.
func (s *Server) rightsOf(key uint32) (r rights.Rights, since uint64, found bool) {
	terms, since, found := s.cfg.Keys.Granted(key)
	return rights.Of(terms), since, found
}

// Reload reads the keys again. Sessions of a key that is gone, or may do something else now, end within a second: their clients come
// again. Quotas are what the keys say now; a salt that has more loses its oldest blocks, behind this call: that asks the disk for
// each of them. On an error all stays as it was.
func (s *Server) Reload() error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if err := s.cfg.Keys.Reload(); err != nil {
		return err
	}
	s.cfg.Store.SetQuotas(rights.Quotas(s.cfg.Keys))
	select {
	case s.requoted <- struct{}{}:
	default: // what is under way, or comes, sees the new ones
	}
	return nil
}

// evictOverQuotas does so each time that quotas were set. It ends with the server, after the block that it is at.
func (s *Server) evictOverQuotas() {
	for {
		select {
		case <-s.closed:
			return
		case <-s.requoted:
			s.cfg.Store.EvictOverQuotas(s.closed)
		}
	}
}

// grant takes the rights of the key that a session was begun with. reading is that of the key file before the handshake.
func (c *conn) grant(key uint32, reading uint64) error {
	var since uint64
	var found bool
	if c.rights, since, found = c.server.rightsOf(key); !found || since > reading {
		return errRevoked
	}
	c.key = key
	c.reading.Store(reading)
	return nil
}

// isRevoked reports whether the key is gone, or has other rights than the connection was begun with.
func (c *conn) isRevoked() bool {
	now := c.server.cfg.Keys.Reading()
	if c.reading.Load() == now {
		return false
	}
	if _, since, found := c.server.rightsOf(c.key); !found || since > c.reading.Load() {
		return true
	}
	c.reading.Store(now)
	return false
}

// permit says in the reply why the request may not be done.
func (c *conn) permit(j *job, digest *[32]byte) message.Status {
	whyNot := c.server.permit(c.key, &c.rights, j.code, digest)
	if whyNot == "" {
		return message.OK
	}
	j.say(whyNot)
	return message.Denied
}

// visible is what the client may see of the engine's counts: of namespaces, those that it has open, if it may not open all.
func (c *conn) visible(engine any) any {
	if !c.rights.IsLimited() {
		return engine
	}
	st, known := engine.(store.Stats)
	if !known {
		return nil
	}
	st.Namespaces = slices.DeleteFunc(st.Namespaces, func(n store.NamespaceStats) bool {
		return !slices.ContainsFunc(c.spaces, func(s space) bool { return n.Digest == hex.EncodeToString(s.digest[:8]) })
	})
	return st
}

// revoke ends the connections that are revoked.
func (s *Server) revoke() {
	for _, c := range s.all() {
		if c.isRevoked() {
			_ = c.nc.Close()
		}
	}
}
