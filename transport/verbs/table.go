package verbs

import "net/netip"

// A table is libibverbs and librdmacm as the provider sees them: one method a call, batches in one call, events copied and
// acknowledged before they are returned. Two things implement it: the C shim, where the library was found at run time
// (cgo.go, build tag verbs), and a model of an adapter in Go (package-internal sim), with which the provider's state machine
// is tested on every machine.
//
// All methods may be called by any goroutine unless a comment says otherwise. No method blocks but for where it says so.
// Nothing that is passed is kept: arrays and private data are copied or used up when the method returns. What the adapter
// reads and writes later is named by address, and is mmapped memory.
type table interface {
	// Version says which libraries were opened, for people: "libibverbs 1.14.44.0, librdmacm 1.3.44.0".
	Version() string

	// Devices lists the adapters that librdmacm has opened. They stay open until the process ends (librdmacm holds them), and
	// an adapter that came later is in the next list.
	Devices() ([]deviceAttr, error)
	Port(dev handle, port int) (portAttr, error)
	GIDs(dev handle, port int) ([]gidEntry, error)
	// AsyncFD is readable while Async has an event. The descriptor is non-blocking and the library's: it is not closed.
	AsyncFD(dev handle) int
	Async(dev handle) (e asyncEvent, ok bool, err error)

	// Memory. A protection domain, region or window is freed only after what was made in it.
	AllocPD(dev handle) (handle, error)
	DeallocPD(pd handle) error
	RegMR(pd handle, addr uintptr, length uint64, a access) (mr handle, lkey, rkey uint32, err error)
	DeregMR(mr handle) error
	// AllocMW makes a window of type 2; errNotSupported says that this adapter, or its library, has none.
	AllocMW(pd handle) (mw handle, rkey uint32, err error)
	DeallocMW(mw handle) error

	// Completions. The channel's descriptor is non-blocking. Events reads and acknowledges all events there are.
	CreateChannel(dev handle) (ch handle, fd int, err error)
	DestroyChannel(ch handle) error
	CreateCQ(dev handle, entries int, ch handle) (cq handle, size int, err error)
	DestroyCQ(cq handle) error
	Arm(cq handle) error
	Events(ch handle) (n int, err error)
	// Poll takes completions; one goroutine a queue at a time.
	Poll(cq handle, wc []workComp) (int, error)

	// Queue pairs belong to a connection's id: rdma_create_qp moves them to INIT, where receives may be posted.
	CreateQP(id, pd, cq handle, want qpCaps) (qp handle, got qpCaps, num uint32, err error)
	// ErrorQP moves a queue pair to ERR: all that is outstanding completes with wcFlushed.
	ErrorQP(qp handle) error
	DestroyQP(id handle) error
	// PostSend and PostRecv take requests in order, with one doorbell; WR i uses the next wrs[i].SGEs entries of sges. They
	// return how many the adapter took. One goroutine a queue at a time.
	PostSend(qp handle, wrs []sendWR, sges []sge) (int, error)
	PostRecv(qp handle, wrs []recvWR, sges []sge) (int, error)

	// Connections (librdmacm). The channel's descriptor is non-blocking.
	CreateEventChannel() (ch handle, fd int, err error)
	DestroyEventChannel(ch handle)
	// CMEvent takes one event, copies it and acknowledges it. An id may be destroyed only when no event of it is being taken.
	CMEvent(ch handle) (e cmEvent, ok bool, err error)
	CreateID(ch handle) (id handle, err error)
	// DestroyID waits until the events of id that were taken are acknowledged; never call it where events are taken.
	DestroyID(id handle) error
	// MoveID gives id another event channel.
	MoveID(id, ch handle) error
	BindAddr(id handle, a netip.AddrPort) error
	// SetToS sets the type of service (the traffic class of RoCE v2) of connections of id.
	SetToS(id handle, tos uint8) error
	// SetAckTimeout sets how long the adapter waits for an acknowledgement: 4.096 us times two to that power, of five bits. Before
	// ResolveRoute it is told to the peer's adapter too. errNotSupported says that the kernel knows no such option.
	SetAckTimeout(id handle, power uint8) error
	ResolveAddr(id handle, src, dst netip.AddrPort, timeoutMS int) error
	ResolveRoute(id handle, timeoutMS int) error
	Listen(id handle, backlog int) error
	// Connect and the kernel's siw: it waits until TCP has connected, and a refusal is its error, without an event.
	Connect(id handle, p connParam) error
	Accept(id handle, p connParam) error
	Reject(id handle, private []byte) error
	Disconnect(id handle) error
	// Where says which adapter id was bound to, and how its packets go; valid once the address is resolved or a request came.
	Where(id handle) (where, error)
}

// handle names an object of the library; 0 is none. It is never followed in Go.
type handle uintptr

// access is IBV_ACCESS_*.
type access uint32

const (
	accessLocalWrite  access = 1 << 0
	accessRemoteWrite access = 1 << 1
	accessRemoteRead  access = 1 << 2
	accessMWBind      access = 1 << 4
)

// fabricKind is ibv_transport_type, as far as it matters here.
type fabricKind uint8

const (
	kindUnknown fabricKind = iota
	kindIB                 // InfiniBand and RoCE
	kindIWARP
)

// deviceAttr is ibv_device_attr with what names the device.
type deviceAttr struct {
	Dev      handle
	Name     string // "mlx5_0"
	Driver   string // the kernel's, "mlx5_core"; empty if unknown
	Firmware string
	Kind     fabricKind
	GUID     uint64
	Vendor   uint32
	Part     uint32
	Flags    uint64 // IBV_DEVICE_* (device_cap_flags)
	Ports    int
	MaxQP, MaxQPWR, MaxSGE, MaxReadSGE,
	MaxCQ, MaxCQE, MaxMR, MaxPD, MaxMW int
	MaxMRSize  uint64
	MaxReadIn  int // max_qp_rd_atom: Reads that a queue pair serves at a time
	MaxReadOut int // max_qp_init_rd_atom: Reads that it may have outstanding
}

// portState is ibv_port_state.
type portState uint8

const (
	portDown   portState = 1
	portInit   portState = 2
	portArmed  portState = 3
	portActive portState = 4
)

// linkLayer is IBV_LINK_LAYER_*.
type linkLayer uint8

const (
	linkUnknown linkLayer = iota
	linkInfiniBand
	linkEthernet
)

// portAttr is ibv_port_attr.
type portAttr struct {
	State       portState
	Link        linkLayer
	ActiveMTU   int // bytes
	MaxMTU      int // bytes
	MaxMessage  uint32
	GIDs, PKeys int
	LID         uint16
	Width       uint8 // as the kernel codes it: 1, 2, 4, 8, 16
	Speed       uint8
}

// gidKind is ibv_gid_type.
type gidKind uint8

const (
	gidIB gidKind = iota
	gidRoCEv1
	gidRoCEv2
)

// gidEntry is one line of a port's GID table.
type gidEntry struct {
	Index  int
	GID    [16]byte
	Kind   gidKind
	Netdev string // the interface, on RoCE
}

// asyncKind is what an asynchronous event says, as far as the provider acts on it.
type asyncKind uint8

const (
	asyncOther asyncKind = iota
	asyncDeviceFatal
	asyncPortActive
	asyncPortError
	asyncQPFatal // of one queue pair: QP names it
	asyncCQError // of one completion queue
	asyncGIDChange
)

type asyncEvent struct {
	Kind asyncKind
	Code int    // ibv_event_type
	Text string // ibv_event_type_str
	Port int
	QP   handle
	CQ   handle
}

// qpCaps is ibv_qp_cap.
type qpCaps struct{ Sends, Recvs, SendSGE, RecvSGE, Inline int }

// sge has the layout of ibv_sge: the shim passes arrays of it on as they are.
type sge struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// wrOp is what a request of the send queue does.
type wrOp uint8

const (
	wrSend wrOp = iota + 1
	wrSendInv
	wrWrite
	wrRead
	wrBind
	wrLocalInv
)

// wrFlags are IBV_SEND_*.
type wrFlags uint8

const (
	flagFence     wrFlags = 1 << 0
	flagSignaled  wrFlags = 1 << 1
	flagSolicited wrFlags = 1 << 2
	flagInline    wrFlags = 1 << 3
)

// sendWR is a request of the send queue without pointers. The C shim has the same struct (shim.h) and checks its size.
type sendWR struct {
	ID         uint64
	RemoteAddr uint64 // Write, Read
	MW, MR     uint64 // Bind: handles of the window and of the region below it
	BindAddr   uint64
	BindLen    uint64
	RKey       uint32 // Write, Read: the peer's; Bind: the window's next key
	Inv        uint32 // SendInv: the peer's key; LocalInv: ours
	BindAccess uint32
	SGEs       uint16
	Op         wrOp
	Flags      wrFlags
}

// recvWR is a receive; it uses the next SGEs entries.
type recvWR struct {
	ID   uint64
	SGEs uint32
	_    uint32
}

// wcStatus is ibv_wc_status.
type wcStatus uint32

const (
	wcSuccess      wcStatus = 0
	wcLocLen       wcStatus = 1
	wcLocQPOp      wcStatus = 2
	wcLocProt      wcStatus = 4
	wcFlushed      wcStatus = 5
	wcMWBind       wcStatus = 6
	wcBadResp      wcStatus = 7
	wcLocAccess    wcStatus = 8
	wcRemInvReq    wcStatus = 9
	wcRemAccess    wcStatus = 10
	wcRemOp        wcStatus = 11
	wcRetryExceed  wcStatus = 12
	wcRNRExceed    wcStatus = 13
	wcRemAbort     wcStatus = 16
	wcFatal        wcStatus = 19
	wcRespTimeout  wcStatus = 20
	wcGeneralError wcStatus = 21
)

// workComp is a completion without pointers, in the shim as in Go. Op, Bytes and Recv mean something only on success, Inv only
// for a receive: the key that the Send invalidated (0 for none: rxe sets it without IBV_WC_WITH_INV, so the shim passes it on
// where the opcode is a receive and either the flag is set or the kernel filled it in).
type workComp struct {
	ID     uint64
	Status wcStatus
	Vendor uint32
	Bytes  uint32
	Inv    uint32
	QPNum  uint32
	Recv   uint8
	Op     wrOp
	_      uint16
}

// connParam is rdma_conn_param. The private data is copied.
type connParam struct {
	Private            []byte
	ResponderResources uint8 // our IRD
	InitiatorDepth     uint8 // our ORD
	Retry, RNRRetry    uint8
	FlowControl        bool
}

// cmKind is rdma_cm_event_type.
type cmKind uint8

const (
	cmAddrResolved cmKind = iota
	cmAddrError
	cmRouteResolved
	cmRouteError
	cmConnectRequest
	cmConnectResponse
	cmConnectError
	cmUnreachable
	cmRejected
	cmEstablished
	cmDisconnected
	cmDeviceRemoval
	cmMulticastJoin
	cmMulticastError
	cmAddrChange
	cmTimewaitExit
)

// cmEvent is a connection manager's event, acknowledged already.
type cmEvent struct {
	Kind     cmKind
	ID       handle
	Listener handle // of a request: the id that listens
	Status   int    // negative errno, or the reason of a rejection
	Text     string // rdma_event_str
	// Private is the event's own copy. InfiniBand's has zeroes at its end, to the size of the message.
	Private            []byte
	ResponderResources uint8
	InitiatorDepth     uint8
}

// where is how a connection goes.
type where struct {
	Dev           handle
	Port          int
	Local, Remote netip.AddrPort
	GID           [16]byte
	PKey          uint16
	SL            uint8
	TClass        uint8
	MTU           int // bytes, 0 if unknown
}
