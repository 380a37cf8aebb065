package server_test

import (
	"encoding/json"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/wire"
)

// secretOf is the secret of a key in these tests.
func secretOf(id byte) string { return strings.Repeat(string("0123456789abcdef"[id])+"7ab", 16) }

// holder says that a client has this key alone, whatever a server knows of it.
func holder(t testing.TB, id byte) func(*wire.Config) {
	return func(c *wire.Config) {
		ring, err := wire.NewFixedKeyring([]byte(string('0'+id)+" "+secretOf(id)), nil)
		require.NoError(t, err)
		c.Keys = ring
	}
}

// keyFile is one that a test changes.
type keyFile struct{ text atomic.Pointer[string] }

// lines are "id words", to which the secret is added.
func (k *keyFile) write(lines ...string) {
	text := ""
	for _, l := range lines {
		text += l[:1] + " " + secretOf(l[0]-'0') + l[1:] + "\n"
	}
	k.text.Store(&text)
}

func (k *keyFile) ring(t testing.TB) *wire.Keyring {
	ring, err := wire.NewKeyringWithTerms(func() ([]byte, error) { return []byte(*k.text.Load()), nil }, rights.Parse)
	require.NoError(t, err)
	return ring
}

func withKeys(t testing.TB, lines ...string) (*keyFile, func(*server.Config)) {
	k := &keyFile{}
	k.write(lines...)
	return k, func(c *server.Config) { c.Keys = k.ring(t) }
}

func salted(salt string) message.Namespace { return message.Namespace{Model: "m", Salt: salt} }

// TestReadOnlyKey: what such a key may ask, code by code, of sessions.
func TestReadOnlyKey(t *testing.T) {
	_, keys := withKeys(t, "1", "2 read")
	s, engine := serve(t, keys)
	owner, reader := open(t, s, holder(t, 1)), open(t, s, holder(t, 2))
	owner.mustPut("key", []byte("block"))
	one := message.Request{NumKeys: 1}
	said, payload := reader.put("other", []byte("block"))
	allocation := said
	asked := map[message.Code]struct {
		said    message.Request
		payload []byte
		denied  bool
	}{
		message.Open:     {message.Request{}, name.Append(nil), false},
		message.Put:      {said, payload, true},
		message.Get:      {one, table("key"), false},
		message.Delete:   {one, table("key"), true},
		message.Exists:   {one, table("key"), false},
		message.Touch:    {one, table("key"), true},
		message.Pin:      {message.Request{NumKeys: 1, Handle: 1000}, table("key"), true},
		message.List:     {message.Request{}, nil, false},
		message.Stats:    {message.Request{}, nil, false},
		message.Flush:    {message.Request{}, nil, true},
		message.Allocate: {allocation, []byte("other"), true},
		message.Write:    {message.Request{Handle: 1, Bytes: 3}, []byte("abc"), true},
		message.Commit:   {message.Request{Handle: 1}, nil, true},
		message.Abort:    {message.Request{Handle: 1}, nil, true},
		message.Lookup:   {one, table("key"), false},
		message.Read:     {message.Request{Handle: 1}, nil, false},
		message.Release:  {message.Request{NumKeys: 1}, make([]byte, 8), false},
		message.Bad:      {one, table("key"), false},
		message.Share:    {message.Request{}, make([]byte, message.NameBytes), false},
	}
	num := uint64(0)
	for code := range message.NumCodes {
		c, is := asked[message.Code(code)]
		require.Equal(t, is, message.CodeName(message.Code(code)) != "", "code %#x", code)
		if !is {
			continue
		}
		status, text := reader.do(message.Code(code), c.said, c.payload)
		require.Equal(t, c.denied, status == message.Denied, message.CodeName(message.Code(code)))
		if c.denied {
			num++
			require.Equal(t, "key 2 may read only", string(text))
		}
	}
	require.Equal(t, num, s.Counters().Denied.Load())
	require.Equal(t, 1, owner.exists("key"))
	require.Zero(t, owner.exists("other"))
	_ = reader.nc.Close() // with its lease
	quiet(t, engine)
}

// A key of some salts opens their namespaces alone, sees counts of its own ones, and gets no arena.
func TestKeyOfSalts(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	kept, err := store.Open(store.Config{Medium: m})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	_, keys := withKeys(t, "1", "2 salt=a salt=b")
	s, _ := serve(t, keys, func(c *server.Config) {
		c.Store, c.Arena, c.Stats = server.Of(kept), m, func() any { return kept.Stats() }
	})
	owner, err := connect(t, s, holder(t, 1))
	require.NoError(t, err)
	tenant, err := connect(t, s, holder(t, 2))
	require.NoError(t, err)
	for _, c := range []struct {
		r    *raw
		salt string
		want message.Status
	}{
		{tenant, "", message.Denied}, {tenant, "c", message.Denied}, {tenant, "ab", message.Denied}, {tenant, "a", message.OK},
		{owner, "c", message.OK}, {owner, "", message.OK}, {owner, "a", message.OK},
	} {
		n := salted(c.salt)
		status, text := c.r.do(message.Open, message.Request{}, n.Append(nil))
		require.Equal(t, c.want, status, c.salt)
		if status == message.Denied {
			require.Equal(t, "key 2 may not open namespaces of this salt", string(text))
		}
	}
	n := salted("a")
	n.Model = "n"
	status, _ := tenant.do(message.Open, message.Request{}, n.Append(nil))
	require.Equal(t, message.OK, status, "any model of its salts")
	require.EqualValues(t, 3, s.Counters().Denied.Load())
	for num, r := range map[int]*raw{4: owner, 2: tenant} {
		status, text := r.do(message.Stats, message.Request{}, nil)
		require.Equal(t, message.OK, status)
		var st struct{ Store store.Stats }
		require.NoError(t, json.Unmarshal(text, &st))
		require.Len(t, st.Store.Namespaces, num)
	}
	status, _ = tenant.share(tenant.invite().Name)
	require.Equal(t, message.Miss, status)
	status, _ = tenant.do(message.Get, message.Request{NumKeys: 1, Flags: message.FlagPlace}, table("a"))
	require.Equal(t, message.Malformed, status)
	status, _ = owner.share(owner.invite().Name)
	require.Equal(t, message.OK, status)
}

// TestSinglesHaveRights: of single requests each has those of its key.
func TestSinglesHaveRights(t *testing.T) {
	_, keys := withKeys(t, "1", "2 read", "3 salt=a")
	s, _ := serve(t, keys)
	a := dialSingle(t, s)
	a.use(1, secretOf(1))
	_, said := a.do(message.Open, nil, nil)
	a.life = said[:16]
	keyOf := func(salt string) []byte {
		n := salted(salt)
		digest := n.Digest()
		return append(digest[:], 'k')
	}
	for _, c := range []struct {
		id   byte
		code message.Code
		salt string
		want message.Status
	}{
		{2, message.Put, "", message.Denied}, {3, message.Put, "", message.Denied},
		{1, message.Put, "", message.OK}, {3, message.Put, "a", message.OK},
		{2, message.Get, "a", message.OK}, {2, message.Exists, "", message.OK}, {2, message.Delete, "", message.Denied},
		{3, message.Get, "", message.Denied}, {3, message.Exists, "", message.Denied}, {3, message.Delete, "", message.Denied},
		{3, message.Get, "a", message.OK}, {1, message.Get, "", message.OK}, {1, message.Get, "a", message.OK},
	} {
		a.use(c.id, secretOf(c.id))
		var payload []byte
		if c.code == message.Put {
			payload = []byte("block")
		}
		status, reply := a.do(c.code, keyOf(c.salt), payload)
		require.Equal(t, c.want, status, "%+v", c)
		require.Equal(t, c.code == message.Get && status == message.OK, len(reply) > 0)
	}
	require.EqualValues(t, 6, s.Counters().Denied.Load())
}

// TestSingleOfAnotherKey: a request whose key id is another key's, before its payload is there, has not the rights of that one.
func TestSingleOfAnotherKey(t *testing.T) {
	file, keys := withKeys(t, "1", "3 salt=a")
	looked := make(chan struct{}, 100)
	s, _ := serve(t, keys, func(c *server.Config) {
		c.Now = func() time.Time { looked <- struct{}{}; return time.Now() }
	})
	a := dialSingle(t, s)
	a.use(3, secretOf(3))
	_, said := a.do(message.Open, nil, nil)
	a.life = said[:16]
	for len(looked) > 0 {
		<-looked
	}
	n := salted("b")
	digest := n.Digest()
	frame := a.frame(message.Put, append(digest[:], 'k'), []byte("block"))
	_, err := a.nc.Write(frame[:len(frame)-1])
	require.NoError(t, err)
	<-looked // its key was found good before
	file.write("1", "3")
	text := strings.Replace(*file.text.Load(), secretOf(3), secretOf(6), 1)
	file.text.Store(&text)
	require.NoError(t, s.Reload())
	_, err = a.nc.Write(frame[len(frame)-1:])
	require.NoError(t, err)
	a.use(3, secretOf(6))
	status, _ := a.readReply(message.Put)
	require.Equal(t, message.Denied, status)
}

// TestRightsAreTakenAway: sessions of a key that is gone, is another one, or has other rights end; the others go on.
func TestRightsAreTakenAway(t *testing.T) {
	file, keys := withKeys(t, "1", "2", "3 salt=a", "4 read", "5")
	s, engine := serve(t, keys, func(c *server.Config) { c.Hold = 100 * time.Millisecond })
	all := map[byte]*raw{}
	for id := byte(1); id <= 5; id++ {
		r, err := connect(t, s, holder(t, id))
		require.NoError(t, err)
		n := salted("a")
		status, reply := r.do(message.Open, message.Request{}, n.Append(nil))
		require.Equal(t, message.OK, status)
		require.NoError(t, r.opened.Decode(reply))
		all[id] = r
	}
	require.Equal(t, 5, engine.NumHeld())
	require.NoError(t, s.Reload())
	for _, r := range all {
		require.Zero(t, r.exists("k"), "nothing was changed")
	}
	file.write("1", "2 read", "3 salt=a", "5") // 4 is gone
	text := strings.Replace(*file.text.Load(), secretOf(5), secretOf(6), 1)
	file.text.Store(&text)
	require.NoError(t, s.Reload())
	for id, ends := range map[byte]bool{1: false, 2: true, 3: false, 4: true, 5: true} {
		if ends {
			all[id].gone() // though it asks nothing
		} else {
			require.Zero(t, all[id].exists("k"), id)
		}
	}
	require.Eventually(t, func() bool { return s.Counters().Revoked.Load() == 3 && engine.NumHeld() == 2 }, 20*time.Second, time.Millisecond)
	again := open(t, s, holder(t, 2))
	said, payload := again.put("k", []byte("block"))
	status, _ := again.do(message.Put, said, payload)
	require.Equal(t, message.Denied, status)
	text = "what is no key file"
	file.text.Store(&text)
	require.Error(t, s.Reload())
	require.Zero(t, again.exists("k"), "the keys stay")
}

// Quotas are those of the key file, from the start on and after each reading.
func TestQuotasOfKeys(t *testing.T) {
	file, keys := withKeys(t, "1", "2 salt=a quota=3KiB")
	s, engine := serve(t, keys)
	require.EqualValues(t, 3072, engine.QuotaOf(message.TenantOf("a")))
	file.write("1", "2 salt=b quota=1")
	require.NoError(t, s.Reload())
	require.Zero(t, engine.QuotaOf(message.TenantOf("a")))
	require.EqualValues(t, 1, engine.QuotaOf(message.TenantOf("b")))
}

// TestReloadDoesNotWaitForEvictions: a disk that does not answer holds the evictions for quotas, and neither a reading of the
// keys nor the end of the server. A reading meanwhile has evictions of its own.
func TestReloadDoesNotWaitForEvictions(t *testing.T) {
	file, keys := withKeys(t, "1", "2 salt=a quota=3KiB")
	begun, held := make(chan struct{}, 10), make(chan struct{})
	s, engine := serve(t, keys, func(c *server.Config) {
		c.End = 50 * time.Millisecond
		c.Store.(*servertest.Engine).Evict = func(stop <-chan struct{}) {
			select {
			case <-stop:
			default:
				begun <- struct{}{}
				<-held
			}
		}
	})
	<-begun // those of the start
	for _, quota := range []string{"2", "1"} {
		file.write("1", "2 salt=a quota="+quota)
		require.NoError(t, s.Reload())
	}
	require.EqualValues(t, 1, engine.QuotaOf(message.TenantOf("a")))
	held <- struct{}{}
	<-begun // once for both
	ended := time.Now()
	s.Close()
	require.Less(t, time.Since(ended), 10*time.Second)
	require.NoError(t, s.Reload(), "it evicts nothing any more")
	err := s.CloseStore(func() error { return nil }, time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the store is in use")
	close(held)
	require.NoError(t, s.CloseStore(func() error { return nil }, 20*time.Second))
	require.Empty(t, begun)
}

// A put over the quota is refused with the numbers, of sessions and of single requests, whichever key it has, and stores nothing.
func TestPutOverQuota(t *testing.T) {
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	kept, err := store.Open(store.Config{Medium: m})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	_, keys := withKeys(t, "1", "2 salt= quota=8KiB")
	s, _ := serve(t, keys, func(c *server.Config) { c.Store = server.Of(kept) })
	r := open(t, s, holder(t, 1))
	r.mustPut("a", make([]byte, 100))
	r.mustPut("b", make([]byte, 100))
	r.mustPut("c", make([]byte, 100))
	require.Zero(t, r.exists("a"), "it was the oldest")
	require.Equal(t, 2, r.exists("b", "c"))
	said, payload := r.put("large", make([]byte, 9000))
	status, text := r.do(message.Put, said, payload)
	require.Equal(t, message.Quota, status)
	require.Equal(t, "the quota is used up: 8192 bytes are used, 12288 more needed; allowed: 8192", string(text))
	a := dialSingle(t, s)
	a.use(2, secretOf(2))
	_, life := a.do(message.Open, nil, nil)
	a.life = life[:16]
	status, _ = a.do(message.Put, of("large"), make([]byte, 9000))
	require.Equal(t, message.Quota, status)
	require.Equal(t, 2, r.exists("b", "c"))
}

// Connections leave the namespaces that they have opened, of whichever kind they are.
func TestNamespacesAreLeft(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	for _, salt := range []string{"a", "b", "a"} {
		n := salted(salt)
		status, _ := r.do(message.Open, message.Request{}, n.Append(nil))
		require.Equal(t, message.OK, status)
	}
	require.Equal(t, 3, engine.NumHeld())
	a := asks(t, s)
	for _, key := range []string{"0", "1", "2"} {
		digest := name.Digest()
		digest[0] += key[0]
		status, _ := a.do(message.Exists, append(digest[:], key...), nil)
		require.Equal(t, message.Miss, status)
		require.Equal(t, 4, engine.NumHeld(), "one at a time")
	}
	_ = r.nc.Close()
	_ = a.nc.Close()
	require.Eventually(t, func() bool { return engine.NumHeld() == 0 }, 20*time.Second, time.Millisecond)
}
