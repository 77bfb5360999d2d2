package pubsublocal

import (
	"testing"

	"cloud.google.com/go/iam/apiv1/iampb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/type/expr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
)

const iamTopic = "projects/p/topics/topic-a"

// iamServer returns a server with one resource.
func iamServer() *iamPolicies {
	return newIAMPolicies(func(resource string) bool { return resource == iamTopic })
}

func bindings(role string) []*iampb.Binding {
	return []*iampb.Binding{{Role: role, Members: []string{"user:a@example.com"}}}
}

// A policy that was set can be read and replaced by a caller with its etag.
func TestIAMSetAndGet(t *testing.T) {
	p := iamServer()
	empty, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{Resource: iamTopic})
	if err != nil || len(empty.GetBindings()) != 0 {
		t.Fatalf("the first GetIamPolicy = %v, %v, want no bindings", empty, err)
	}
	for _, role := range []string{"roles/pubsub.viewer", "roles/pubsub.editor"} {
		before, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{Resource: iamTopic})
		if err != nil {
			t.Fatal(err)
		}
		set, err := p.SetIamPolicy(t.Context(), &iampb.SetIamPolicyRequest{
			Resource: iamTopic, Policy: &iampb.Policy{Etag: before.GetEtag(), Bindings: bindings(role)},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{Resource: iamTopic})
		if err != nil {
			t.Fatal(err)
		}
		want := &iampb.Policy{Version: 1, Etag: set.GetEtag(), Bindings: bindings(role)}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("policy (-want +got):\n%s", diff)
		}
		_, err = p.SetIamPolicy(t.Context(), &iampb.SetIamPolicyRequest{
			Resource: iamTopic, Policy: &iampb.Policy{Etag: before.GetEtag(), Bindings: bindings("x")},
		})
		if got := status.Code(err); got != codes.Aborted {
			t.Errorf("SetIamPolicy with a stale etag = %v, want ABORTED", err)
		}
	}
	if _, err := p.SetIamPolicy(t.Context(), &iampb.SetIamPolicyRequest{Resource: iamTopic, Policy: &iampb.Policy{}}); err != nil {
		t.Errorf("SetIamPolicy without etag = %v, want nil", err)
	}
}

// A policy is deleted with its resource.
func TestIAMForget(t *testing.T) {
	p := iamServer()
	_, err := p.SetIamPolicy(t.Context(), &iampb.SetIamPolicyRequest{Resource: iamTopic, Policy: &iampb.Policy{Bindings: bindings("r")}})
	if err != nil {
		t.Fatal(err)
	}
	p.forget(iamTopic)
	got, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{Resource: iamTopic})
	if err != nil || len(got.GetBindings()) != 0 {
		t.Errorf("GetIamPolicy after forget = %v, %v, want no bindings", got, err)
	}
}

// A mask without bindings keeps the bindings.
func TestIAMUpdateMask(t *testing.T) {
	p := iamServer()
	for _, r := range []*iampb.SetIamPolicyRequest{
		{Resource: iamTopic, Policy: &iampb.Policy{Bindings: bindings("r")}},
		{Resource: iamTopic, Policy: &iampb.Policy{Version: 3, Bindings: bindings("x")}, UpdateMask: pathMask("version")},
	} {
		if _, err := p.SetIamPolicy(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{Resource: iamTopic})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bindings("r"), got.GetBindings(), protocmp.Transform()); diff != "" || got.GetVersion() != 3 {
		t.Errorf("version %d, bindings (-want +got):\n%s", got.GetVersion(), diff)
	}
}

// TestIamPermissions grants all requested permissions.
func TestIAMTestPermissions(t *testing.T) {
	want := []string{"pubsub.topics.publish", "pubsub.topics.get"}
	got, err := iamServer().TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: iamTopic, Permissions: want})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetPermissions()); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
}

// An invalid request is refused and changes nothing.
func TestIAMRefuses(t *testing.T) {
	set := func(policy *iampb.Policy, paths ...string) func(*iamPolicies) error {
		return func(p *iamPolicies) error {
			r := &iampb.SetIamPolicyRequest{Resource: iamTopic, Policy: policy}
			if paths != nil {
				r.UpdateMask = pathMask(paths...)
			}
			_, err := p.SetIamPolicy(t.Context(), r)
			return err
		}
	}
	get := func(resource string, version int32) func(*iamPolicies) error {
		return func(p *iamPolicies) error {
			_, err := p.GetIamPolicy(t.Context(), &iampb.GetIamPolicyRequest{
				Resource: resource, Options: &iampb.GetPolicyOptions{RequestedPolicyVersion: version},
			})
			return err
		}
	}
	conditional := []*iampb.Binding{{Role: "r", Condition: &expr.Expr{Expression: "true"}}}
	tests := []struct {
		name string
		call func(*iamPolicies) error
		want codes.Code
	}{
		{"version 2", set(&iampb.Policy{Version: 2}), codes.InvalidArgument},
		{"a condition in version 1", set(&iampb.Policy{Version: 1, Bindings: conditional}), codes.InvalidArgument},
		{"a condition in version 3", set(&iampb.Policy{Version: 3, Bindings: conditional}), codes.OK},
		{"no policy", set(nil), codes.InvalidArgument},
		{"a binding without role", set(&iampb.Policy{Bindings: []*iampb.Binding{{}}}), codes.InvalidArgument},
		{"an unknown path", set(&iampb.Policy{}, "roles"), codes.InvalidArgument},
		{"an invented etag", set(&iampb.Policy{Etag: []byte("x")}), codes.Aborted},
		{"a missing resource", get("projects/p/topics/other", 0), codes.NotFound},
		{"another collection", get("projects/p/queues/q", 0), codes.InvalidArgument},
		{"no resource", get("", 0), codes.InvalidArgument},
		{"a requested version 2", get(iamTopic, 2), codes.InvalidArgument},
		{"a requested version 3", get(iamTopic, 3), codes.OK},
		{"set on a missing resource", func(p *iamPolicies) error {
			_, err := p.SetIamPolicy(t.Context(), &iampb.SetIamPolicyRequest{Resource: iamTopic + "x", Policy: &iampb.Policy{}})
			return err
		}, codes.NotFound},
		{"test on a missing resource", func(p *iamPolicies) error {
			_, err := p.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: iamTopic + "x"})
			return err
		}, codes.NotFound},
		{"a wildcard", func(p *iamPolicies) error {
			_, err := p.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: iamTopic, Permissions: []string{"pubsub.*"}})
			return err
		}, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := iamServer()
			err := tt.call(p)
			if got := status.Code(err); got != tt.want {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err != nil && len(p.policies) != 0 {
				t.Error("a refused call changed a policy")
			}
		})
	}
}
