package main

import (
	"strings"
	"testing"

	"example.com/servicekit/naming"
)

// withWords returns valid options with an entity.
func withWords(entity, plural string) options {
	a := options{Module: "github.com/acme/shopping", Service: "shopping", Schema: "shop", Domain: "shop.acme.example", Entity: entity, Plural: plural}
	a.setDefaults()
	return a
}

// A word of the example becomes the entity's word, in the form that its place needs.
func TestWords(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ file, text, order, purchaseOrder string }{
		{"x.go", "type Video struct{ VideoID id }", "type Order struct{ OrderID id }", "type PurchaseOrder struct{ PurchaseOrderID id }"},
		{"x.go", "videos.CreateVideo(video, videoOf(v))", "orders.CreateOrder(order, orderOf(v))", "purchaseOrders.CreatePurchaseOrder(purchaseOrder, purchaseOrderOf(v))"},
		{"x.go", "videov1.Video_STATE_DRAFT", "orderv1.Order_STATE_DRAFT", "purchaseorderv1.PurchaseOrder_STATE_DRAFT"},
		{"x.go", "x := a-videos*video.size", "x := a-orders*order.size", "x := a-purchaseOrders*purchaseOrder.size"},
		{"x.go", "// A video, a Video, a\n// video: the video's videos.", "// An order, an Order, an\n// order: the order's orders.", "// A purchase order, a PurchaseOrder, a\n// purchase order: the purchase order's purchase orders."},
		{"x.go", "x\n\n// videos says\n// it.\nfunc videos() {}\n\n// videos here.", "x\n\n// orders says\n// it.\nfunc orders() {}\n\n// orders here.", "x\n\n// purchaseOrders says\n// it.\nfunc purchaseOrders() {}\n\n// purchase orders here."},
		{"x.go", `f("a video %s", "video", "video.release_year", "videos/1", "/v1/videos:x")`, `f("an order %s", "order", "order.release_year", "orders/1", "/v1/orders:x")`, `f("a purchase order %s", "purchase_order", "purchase_order.release_year", "purchaseOrders/1", "/v1/purchaseOrders:x")`},
		{"x.go", `f("a\tvideo", "\tvideos(cfg)", "FROM videos WHERE video_id", "skip video ID")`, `f("a\torder", "\torders(cfg)", "FROM orders WHERE order_id", "skip order ID")`, `f("a\tpurchase order", "\tpurchaseOrders(cfg)", "FROM purchase_orders WHERE purchase_order_id", "skip purchase_order ID")`},
		{"x.go", `f("api/proto/video/v1", "store/videos.go", "video.releaseYear", VIDEO_DELETED)`, `f("api/proto/order/v1", "store/orders.go", "order.releaseYear", ORDER_DELETED)`, `f("api/proto/purchase_order/v1", "store/purchase_orders.go", "purchaseOrder.releaseYear", PURCHASE_ORDER_DELETED)`},
		{"x.go", `got["videos"], "/v1/videos/{video}", x{table="videos"}, "video_catalog.videos": 1`, `got["orders"], "/v1/orders/{order}", x{table="orders"}, "shop.orders": 1`, `got["purchaseOrders"], "/v1/purchaseOrders/{purchaseOrder}", x{table="purchase_orders"}, "shop.purchase_orders": 1`},
		{"x.proto", "package video.v1; // A video.", "package order.v1; // An order.", "package purchase_order.v1; // A purchase order."},
		{"x.proto", "Video video = 1;", "Order order = 1;", "PurchaseOrder purchase_order = 1;"},
		{"x.proto", `pattern: "videos/{video}" singular: "video" plural: "videos"`, `pattern: "orders/{order}" singular: "order" plural: "orders"`, `pattern: "purchaseOrders/{purchase_order}" singular: "purchaseOrder" plural: "purchaseOrders"`},
		{"x.proto", `{patch: "/v1/{video.name=videos/*}" body: "video"}`, `{patch: "/v1/{order.name=orders/*}" body: "order"}`, `{patch: "/v1/{purchase_order.name=purchaseOrders/*}" body: "purchase_order"}`},
		{"x.sql", "SELECT * FROM video_catalog.videos -- of a video", "SELECT * FROM shop.orders -- of an order", "SELECT * FROM shop.purchase_orders -- of a purchase order"},
		{"x.sql", "IS 'The state of a video.'", "IS 'The state of an order.'", "IS 'The state of a purchase order.'"},
		{"x.json", `{"video": {}, "videoId": 1}`, `{"order": {}, "orderId": 1}`, `{"purchaseOrder": {}, "purchaseOrderId": 1}`},
		{"x.yaml", "types: [video]\nname: video.events\nkind: video\ntext: a video is late", "types: [order]\nname: shopping.order.events\nkind: order\ntext: an order is late", "types: [purchase_order]\nname: shopping.purchase-order.events\nkind: purchase_order\ntext: a purchase order is late"},
		{"x.md", "Videos: a `video` in `videos/ID`. Videos are video.events.", "Orders: an `order` in `orders/ID`. Orders are shopping.order.events.", "PurchaseOrders: a `purchase_order` in `purchaseOrders/ID`. Purchase orders are shopping.purchase-order.events."},
		{"x.md", "```go\nvideo := 1\n```\na video", "```go\norder := 1\n```\nan order", "```go\npurchaseOrder := 1\n```\na purchase order"},
		{"x.md", "a catalog, CatalogService, catalogEntries, the-catalog-is, CATALOG", "an overview, OverviewService, overviewEntries, the-overview-is, OVERVIEW", "an overview, OverviewService, overviewEntries, the-overview-is, OVERVIEW"},
		{"x.sh", "curl https://videos.example.com/v1/videos # a film", "curl https://orders.example.com/v1/orders # an order", "curl https://purchase-orders.example.com/v1/purchaseOrders # a purchase order"},
		{"x.md", "https://example.com/videocatalog of videocatalog", "https://github.com/acme/shopping of shopping", "https://github.com/acme/shopping of shopping"},
		{"x.md", "videoclip microfilm avideo", "videoclip microfilm avideo", "videoclip microfilm avideo"},
	} {
		for want, a := range map[string]options{test.order: withWords("order", ""), test.purchaseOrder: withWords("purchase_order", "")} {
			if got := a.rename(test.text, spans(test.file, test.text)); got != want {
				t.Errorf("%s: rename(%q) =\n%q, want\n%q", test.file, test.text, got, want)
			}
		}
	}
	if got := withWords("order", "").renamePath("internal/event/testdata/video_created.1.json"); got != "internal/event/testdata/order_created.1.json" {
		t.Errorf("renamePath() = %q", got)
	}
}

// Words of PostgreSQL that look like the catalog stay.
func TestWordsOfOthersStay(t *testing.T) {
	t.Parallel()
	a := withWords("order", "")
	for _, text := range []string{
		"pg_catalog.pg_class", "age(catalog_xmin)", "SELECT current_catalog", "information_schema.information_schema_catalog_name",
		"table_catalog", "constraint_catalog", "catalog_name", "PostgreSQL's system catalogs", "a system catalog",
	} {
		for _, file := range []string{"x.go", "x.sql", "x.md", "x.yaml", "x.sh"} {
			if got := a.rename(text, spans(file, text)); got != text {
				t.Errorf("%s: rename(%q) = %q, want no change", file, text, got)
			}
		}
	}
}

// Plurals and articles follow the rules of English.
func TestEnglish(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"order": "orders", "category": "categories", "box": "boxes", "status": "statuses", "day": "days", "branch": "branches", "purchase_order": "purchase_orders",
	} {
		if got := naming.Plural(word); got != want {
			t.Errorf("naming.Plural(%q) = %q, want %q", word, got, want)
		}
	}
	for word, want := range map[string]string{"order": "An", "user": "A", "unit": "A", "hour": "An", "uncle": "An", "invoice": "An", "one_time_code": "A", "box": "A", "uninstall": "An"} {
		if got := withWords(word, "").rename("A video", []span{{7, prose}}); !strings.HasPrefix(got, want+" ") {
			t.Errorf("the article of %s is in %q, want %q", word, got, want)
		}
	}
}

// Every wrong word is refused with one error.
func TestWrongWords(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		a    options
		want string
	}{
		"capitals":             {withWords("Order", ""), "--entity"},
		"a hyphen":             {withWords("purchase-order", ""), "--entity"},
		"two underscores":      {withWords("purchase__order", ""), "--entity"},
		"a digit":              {withWords("order2", ""), "--entity"},
		"too long":             {withWords(strings.Repeat("x", 25), ""), "--entity"},
		"the example":          {withWords("video_clip", ""), "--entity"},
		"id":                   {withWords("order_id", ""), "--entity"},
		"a folder of Go":       {withWords("vendor", ""), "--entity"},
		"a word of Java":       {withWords("class", ""), "a word of Java"},
		"the schema":           {withWords("shop", ""), "--schema"},
		"plural is singular":   {withWords("news", "news"), "--plural"},
		"plural in capitals":   {withWords("news", "News"), "--plural"},
		"plural is the schema": {withWords("thing", "shop"), "--schema"},
	} {
		if err := test.a.check(); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: check() = %v, want one error about %s", name, err, test.want)
		}
	}
	for _, a := range []options{
		withWords("order", ""), withWords("purchase_order", ""), withWords("news", "news_items"), withWords("user", ""),
		withWords("lease", ""), withWords("message", ""), withWords("shopping", ""), // the machinery has these words, too
		{Module: "github.com/acme/orders", Entity: "order"},
	} {
		a.setDefaults()
		if err := a.check(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}
