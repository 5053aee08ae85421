package ceph

import "time"

// Options say which cluster to connect to, and as whom. The zero value is client.admin by Ceph's own search for a configuration.
type Options struct {
	// Conf is the path of a ceph.conf. "" is Ceph's own search: $CEPH_CONF, /etc/ceph/ceph.conf, ~/.ceph/ceph.conf.
	Conf string
	// User is who connects: "admin" and "client.admin" say the same, and "" does too.
	User string
	// Keyring is the path of the user's key. "" leaves it to Conf.
	Keyring string
	// Settings are options of Ceph's, set behind all others.
	Settings map[string]string
	// MonTimeout bounds a monitor's answer and the connecting; 0 is 30 s.
	MonTimeout time.Duration
	// OSDTimeout bounds an operation on an object; 0 waits for ever.
	OSDTimeout time.Duration
}

// Xattr is an extended attribute of an object.
type Xattr struct {
	Name  string
	Value []byte
}

// WriteOp is a compound operation on one object: all of it is done, in the order of the fields, or nothing. Zero fields do nothing.
type WriteOp struct {
	CreateExclusive bool              // the object is made; EEXIST where it is there
	AssertExists    bool              // ENOENT where it is not
	AssertVersion   uint64            // ERANGE where the object is newer, EOVERFLOW where it is older
	CompareXattrs   []Xattr           // each has that value, else ECANCELED
	WriteFull       []byte            // the content; nil leaves it, and an empty one that is not nil empties the object
	SetXattrs       []Xattr           //
	OmapSet         map[string][]byte //
	OmapRemove      []string          //
	Remove          bool              // the object goes
}

// Locker is who holds a lock of an object.
type Locker struct {
	Client  string // "client.4123", for BreakLock
	Cookie  string
	Address string // "127.0.0.1:0/3190911234", for a blocklist
}

// Ack is one watcher's answer to a notification.
type Ack struct {
	Client, Cookie uint64
	Payload        []byte
}

// FeatureNames are those of an image's features, as rbd(8) has them, in the order of their bits.
var FeatureNames = [...]string{
	"layering", "striping", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling", "data-pool", "operations", "migrating",
	"non-primary", "dirty-cache",
}

// The features of images that decide here.
const (
	FeatureExclusiveLock = 1 << 2
	FeatureJournaling    = 1 << 6
	FeatureMigrating     = 1 << 9
	FeatureNonPrimary    = 1 << 10
	FeatureDirtyCache    = 1 << 11
	FeaturesKnown        = 1<<len(FeatureNames) - 1
)

// ImageInfo is what an image is.
type ImageInfo struct {
	ID          string // the pool's own name for it, which a rename keeps
	Size        uint64
	ObjectSize  uint64
	StripeUnit  uint64 // ObjectSize where nothing is striped
	StripeCount uint64
	Features    uint64
}

// Snapshot is one of an image's.
type Snapshot struct {
	ID   uint64
	Size uint64
	Name string
}

// ImageSpec says what a new image is to be. Zero values leave it to the cluster's configuration.
type ImageSpec struct {
	Size       uint64
	ObjectSize uint64 // a power of two
	DataPool   string
}
