package conformance

// Emulator is the known differences of Google's emulator (0.8.20) from the
// service: by id of the case, what the emulator does instead.
var Emulator = map[string]string{
	"A1":  noProtobuf,
	"A2":  noProtobuf,
	"A3":  "returns NOT_FOUND for names without a project and for malformed dead-letter topics and schemas",
	"A4":  noProtobuf,
	"A5":  "lists nothing for a topic that is missing, and has no DetachSubscription and no UpdateSnapshot",
	"A7":  "refuses a snapshot without a name",
	"A8":  lateDeadLetters,
	"A9":  noProtobuf,
	"A10": noProtobuf,
	"A14": noUpdateSnapshot,
	"A15": noUpdateSnapshot,
	"A16": fixedFields,
	"A17": "calls immutable and output-only fields unknown or unsupported, not immutable",
	"A18": fixedFields,
	"A19": noProtobuf,
	"A20": noUpdateSnapshot,
	"A21": noUpdateSnapshot,
	"A22": "takes any labels in a create, and none in an update",

	"B1":  `says "Too many messages to publish"`,
	"B2":  "takes a request of more than 10,000,000 bytes",
	"B3":  "accepts a body of more than 10 MiB, and returns INTERNAL for one of 24 MiB",
	"B7":  "takes more than 100 attributes",
	"B8":  "takes attribute keys of any length",
	"B9":  "takes attribute values of any length",
	"B10": reservedKeys,
	"B11": "takes different ordering keys in a request",
	"B12": "takes ordering keys of any length",
	"B14": reservedKeys,
	"B19": retainedAtOnce,
	"B23": "takes a compressed request of more than 10,000,000 bytes",

	"C3": retainedAtOnce,
	"C4": "shows as the topic's retention what the request for the subscription said",

	"D1":  "returns neither expiration_policy nor state",
	"D2":  "takes an ack deadline of 1 to 9 seconds",
	"D3":  "has 10 seconds as the default ack deadline with exactly-once delivery, too",
	"D4":  "refuses a message retention of more than 7 days",
	"D5":  "takes an expiration of less than a day",
	"D6":  "takes an expiration that is shorter than the message retention",
	"D15": noDetach,
	"D16": noDetach,
	"D17": "takes several ways of delivery",
	"D18": "takes exactly-once delivery together with push and export",

	"E1":  noFilters,
	"E2":  noFilters,
	"E3":  noFilters,
	"E4":  noFilters,
	"E5":  noFilters,
	"E6":  noFilters,
	"E7":  noFilters,
	"E8":  noFilters,
	"E9":  noFilters,
	"E10": noFilters,
	"E11": noFilters,
	"E12": noFilters,
	"E13": noFilters,
	"E14": noFilters,
	"E15": noFilters,
	"E16": noFilters,
	"E17": noFilters,

	"F1": "accepts a pull for -1 messages, and returns none a second before its deadline",
	"F6": "accepts a pull of a push subscription, and returns no messages a second before its deadline",
	"F7": "flaky: leases a message to a pull whose caller has disconnected",

	"G1":  noDetach,
	"G3":  "does not end a stream for limits or a protocol version in a later request",
	"G4":  "takes deadlines of more than 600 seconds on a stream",
	"G8":  noFlowControl,
	"G9":  noFlowControl,
	"G11": noFlowControl,
	"G12": noPings,
	"G13": noPings,
	"G18": notGivenBack,
	"G20": notGivenBack,
	"G22": "sends responses of several megabytes",

	"H10": "takes requests of more than 524,288 bytes",
	"H11": "has the name of the subscription in its ack ids, of up to 295 bytes in the case",

	"I1":  oneRunNotAwaited,
	"I3":  oneRunNotAwaited,
	"I5":  oneRunNotAwaited,
	"I6":  noFlowControl,
	"I7":  nackedAlone,
	"I9":  nackedAlone,
	"I10": nackedAlone,
	"I16": notGivenBack,
	"I20": reservedKeys,
	"I21": "flaky: on a busy machine it takes more than 5 seconds for three messages of 9 MB",

	"J4":  "refuses with an empty text",
	"J8":  "takes the ids of a request one after another, so that a later message fails that is named before an earlier one",
	"J10": "sends no confirmations on a stream",

	"K2":  "returns OUT_OF_RANGE",
	"K7":  lateDeadLetters,
	"K8":  lateDeadLetters,
	"K11": lateDeadLetters,
	"K12": "counts the failure of a delivery that was under way when the policy was added",
	"K13": lateDeadLetters,
	"K14": "returns from no pull of the subscription once the message should have been forwarded",

	"L4":  purgedForGood,
	"L7":  purgedForGood,
	"L9":  "delivers nothing to a subscription that was created after the snapshot",
	"L12": noDetach,
	"L14": "drops the labels of a snapshot, and has no UpdateSnapshot",

	"M1":  noProtobuf,
	"M2":  noProtobuf,
	"M3":  noProtobuf,
	"M4":  noProtobuf,
	"M5":  noProtobuf,
	"M6":  noProtobuf,
	"M7":  noProtobuf,
	"M8":  noProtobuf,
	"M9":  noProtobuf,
	"M10": noProtobuf,
	"M11": noProtobuf,
	"M12": noProtobuf,
	"M13": noProtobuf,
	"M14": noProtobuf,
	"M15": noProtobuf,
	"M16": noProtobuf,
	"M17": noProtobuf,
	"M18": noProtobuf,
	"M19": noProtobuf,
	"M21": noProtobuf,

	"N2":  "leaves the details of errors out of JSON",
	"N3":  noDetach,
	"N5":  "returns neither expirationPolicy nor state",
	"N6":  fixedFields,
	"N7":  "does not name the field that it refuses",
	"N8":  "lets a pull over HTTP wait on after the time of X-Server-Timeout",
	"N9":  fixedFields,
	"N10": noProtobuf,
	"N11": "takes export and transform settings",
	"N13": "flaky: mostly responds to a preface in several packets as HTTP/1.1",
	"N14": "serves neither reflection nor grpc.health.v1",
}

// Differences that several cases have.
const (
	fixedFields      = "refuses labels and expiration_policy in an update mask"
	lateDeadLetters  = "forwards a message only when its subscription is pulled again"
	nackedAlone      = "after a nack it redelivers the message alone, not the later ones of its key"
	noDetach         = "has no DetachSubscription"
	noFilters        = "stores any filter and applies none"
	noFlowControl    = "has no limit to what is outstanding on a stream"
	noPings          = "does not respond to pings"
	noProtobuf       = "has no protobuf schemas"
	noUpdateSnapshot = "has no UpdateSnapshot"
	notGivenBack     = "keeps what a stream had outstanding leased when the stream ends"
	oneRunNotAwaited = "delivers later messages of a key while earlier ones are outstanding"
	purgedForGood    = "drops for good what a seek into the future acknowledges, also with retain_acked_messages"
	reservedKeys     = "takes attribute keys that start with goog"
	retainedAtOnce   = "delivers what a topic retains to a new subscription without a seek"
)
