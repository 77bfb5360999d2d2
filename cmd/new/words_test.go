package main

import (
	"strings"
	"testing"
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
		{"x.go", "// recordVideo writes a video, a\n// video: the video's [Videos]. See store/videos.go.", "// recordOrder writes an order, an\n// order: the order's [Orders]. See store/orders.go.", "// recordPurchaseOrder writes a purchase order, a\n// purchase order: the purchase order's [PurchaseOrders]. See store/purchase_orders.go."},
		{"x.go", "`curl http://HOST/v1/videos`", "`curl http://HOST/v1/orders`", "`curl http://HOST/v1/purchaseOrders`"},
		{"x.sh", "api/proto/video/v1/video_event.proto", "api/proto/order/v1/order_event.proto", "api/proto/purchase_order/v1/purchase_order_event.proto"},
		{"x.yaml", "video_catalog_videos: VideoCatalogVideo", "shop_orders: ShopOrder", "shop_purchase_orders: ShopPurchaseOrder"},
		{"x.yaml", "description: Videos, and the catalog of a video", "description: Orders, and the view of an order", "description: PurchaseOrders, and the view of a purchase order"},
		{"x.md", "A `video` in `catalog`: a video of a catalog, videos.", "An `order` in `view`: an order of a view, orders.", "A `purchase_order` in `view`: a purchase order of a view, purchase orders."},
		{"x.md", "```sh\nserver show video ID\n```\na video", "```sh\nserver show order ID\n```\nan order", "```sh\nserver show purchase_order ID\n```\na purchase order"},
		{"x.md", "`VIDEO_DELETED`, `video.v1.VideoService`, `event/video.go`", "`ORDER_DELETED`, `order.v1.OrderService`, `event/order.go`", "`PURCHASE_ORDER_DELETED`, `purchase_order.v1.PurchaseOrderService`, `event/purchase_order.go`"},
		{"x.md", "https://example.com/videocatalog of videocatalog", "https://github.com/acme/shopping of shopping", "https://github.com/acme/shopping of shopping"},
		{"x.md", "videoclip microfilm avideo pg_catalog age(catalog_xmin)", "videoclip microfilm avideo pg_catalog age(catalog_xmin)", "videoclip microfilm avideo pg_catalog age(catalog_xmin)"},
	} {
		for want, a := range map[string]options{test.order: withWords("order", ""), test.purchaseOrder: withWords("purchase_order", "")} {
			if got := a.rename(test.file, test.text); got != want {
				t.Errorf("%s: rename(%q) =\n%q, want\n%q", test.file, test.text, got, want)
			}
		}
	}
}

// Articles follow the rules of English.
func TestArticles(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"order": "An", "user": "A", "unit": "A", "hour": "An", "uncle": "An", "invoice": "An", "one_time_code": "A", "box": "A", "uninstall": "An"} {
		if got := withWords(word, "").rename("x.md", "A video"); !strings.HasPrefix(got, want+" ") {
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
		withWords("lease", ""), withWords("message", ""), withWords("shopping", ""), withWords("video_clip", ""), // the machinery has these words, too
		{Module: "github.com/acme/orders", Entity: "order"},
	} {
		a.setDefaults()
		if err := a.check(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}
