//! Puts switches into a file.

use crate::{Genre, Wanted};
use proc_macro2::{Group, LineColumn, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr};

/// The text of a file with its mutants behind switches, and those for which that is impossible.
pub fn file(text: &str, wanted: Wanted) -> (String, Vec<(u32, String)>) {
    let mut tree = syn::parse_file(text).expect("a file that compiles");
    let mut rewrite = Rewrite { wanted, refused: Vec::new(), switches: 0 };
    rewrite.visit_file_mut(&mut tree);
    let left = rewrite.wanted.into_values().flatten().map(|(id, _)| (id, "not in a function".to_owned()));
    rewrite.refused.extend(left);
    (tree.to_token_stream().to_string(), rewrite.refused)
}

struct Rewrite {
    wanted: Wanted,
    refused: Vec<(u32, String)>,
    /// The number of switches so far.
    switches: usize,
}

/// An expression made of tokens with one operator replaced.
fn replaced(tokens: TokenStream, at: LineColumn, width: usize, by: &TokenStream) -> TokenStream {
    let mut out = TokenStream::new();
    // The characters of the operator that are still to be left out.
    let mut left = 0;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), replaced(group.stream(), at, width, by));
                inner.set_span(group.span());
                out.extend([TokenTree::Group(inner)]);
            }
            TokenTree::Punct(punct) if punct.span().start() == at => {
                out.extend(by.clone());
                left = width - 1;
            }
            TokenTree::Punct(_) if left > 0 => left -= 1,
            other => out.extend([other]),
        }
    }
    out
}

/// Whether an operand of a chain of `&&` is a `let`: such a chain is no value.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// The operators of an expression down to the operands that are no operators themselves.
fn operators<'a>(expr: &'a Expr, found: &mut Vec<&'a BinOp>) {
    if let Expr::Binary(binary) = expr {
        operators(&binary.left, found);
        found.push(&binary.op);
        operators(&binary.right, found);
    }
}

impl Rewrite {
    /// The mutants of a kind that begin where something begins.
    fn take(&mut self, genre: Genre, span: Span) -> Vec<(u32, String)> {
        let LineColumn { line, column } = span.start();
        self.wanted.remove(&(genre, line, column)).unwrap_or_default()
    }

    /// Makes an expression depend on a switch.
    fn choose(&mut self, expr: &mut Expr, id: u32, mutant: TokenStream) {
        match syn::parse2::<Expr>(mutant) {
            Ok(mutant) => {
                self.switches += 1;
                let original = expr.to_token_stream();
                *expr = syn::parse2(quote!((if crate::mutant_is(#id) { (#mutant) } else { (#original) })))
                    .expect("an expression");
            }
            Err(error) => self.refused.push((id, format!("unviable: {error}"))),
        }
    }

    /// An expression of operators, whose operands are already rewritten.
    fn chain(&mut self, expr: &mut Expr) {
        let mut found = Vec::new();
        operators(expr, &mut found);
        let places: Vec<_> =
            found.iter().map(|op| (op.span(), op.to_token_stream().to_string().len())).collect();
        let original = expr.to_token_stream();
        for (span, width) in places {
            for (id, by) in self.take(Genre::BinaryOperator, span) {
                let by: TokenStream = by.parse().expect("an operator");
                self.choose(expr, id, replaced(original.clone(), span.start(), width, &by));
            }
        }
    }

    /// Visits the operands of an expression of operators. With `let` among them, each operand of `&&` is an expression of its
    /// own.
    fn operands(&mut self, expr: &mut Expr, lets: bool) {
        match expr {
            Expr::Binary(binary) if !lets || has_let(&binary.left) || has_let(&binary.right) => {
                self.operands(&mut binary.left, lets);
                self.operands(&mut binary.right, lets);
            }
            other => self.visit_expr_mut(other),
        }
    }

    /// An expression of a structure, some of whose fields are taken from the default instead.
    fn fields(&mut self, expr: &mut Expr) {
        let Expr::Struct(structure) = &*expr else { return };
        let places: Vec<_> = structure.fields.iter().map(Spanned::span).collect();
        visit_mut::visit_expr_mut(self, expr);
        let Expr::Struct(original) = expr.clone() else { return };
        for (index, span) in places.into_iter().enumerate() {
            for (id, _) in self.take(Genre::StructField, span) {
                let mut mutant = original.clone();
                let others = original.fields.iter().enumerate().filter(|(i, _)| *i != index);
                mutant.fields = others.map(|(_, field)| field.clone()).collect();
                if !mutant.fields.is_empty() {
                    mutant.fields.push_punct(Default::default());
                }
                self.choose(expr, id, mutant.to_token_stream());
            }
        }
    }

    /// An arm that never matches, or whose guard is constant.
    fn arm(&mut self, arm: &mut Arm) {
        let gone = self.take(Genre::MatchArm, arm.span());
        let guards = arm.guard.as_ref().map(|(_, guard)| guard.span());
        let guards = guards.map(|span| self.take(Genre::MatchArmGuard, span)).unwrap_or_default();
        visit_mut::visit_arm_mut(self, arm);
        for (id, value) in guards {
            let (_, guard) = arm.guard.as_mut().expect("it has a guard");
            if has_let(guard) {
                self.refused.push((id, "a guard with let".to_owned()));
            } else {
                let value: TokenStream = value.parse().expect("true or false");
                self.choose(guard, id, value);
            }
        }
        for (id, _) in gone {
            self.switches += 1;
            let stays = quote!(!crate::mutant_is(#id));
            let (mark, guard) = match arm.guard.take() {
                Some((mark, guard)) => (mark, quote!(#stays && #guard)),
                None => (Default::default(), stays),
            };
            arm.guard = Some((mark, Box::new(syn::parse2(guard).expect("a guard"))));
        }
    }

    /// A function. One that is constant, and has got a switch, can no longer be constant.
    fn function(&mut self, constness: &mut Option<syn::Token![const]>, block: &mut Block) {
        let before = self.switches;
        let first = block.stmts.first().map(Spanned::span);
        let values = first.map(|span| self.take(Genre::FnValue, span)).unwrap_or_default();
        visit_mut::visit_block_mut(self, block);
        for (id, value) in values {
            let stmt =
                value.parse::<TokenStream>().map(|value| quote!(if crate::mutant_is(#id) { return #value; }));
            match stmt
                .map_err(|error| error.to_string())
                .and_then(|s| syn::parse2(s).map_err(|e| e.to_string()))
            {
                Ok(stmt) => {
                    self.switches += 1;
                    block.stmts.insert(0, stmt);
                }
                Err(error) => self.refused.push((id, format!("unviable: {error}"))),
            }
        }
        if self.switches > before {
            *constness = None;
        }
    }
}

impl VisitMut for Rewrite {
    fn visit_item_fn_mut(&mut self, item: &mut syn::ItemFn) {
        self.function(&mut item.sig.constness, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut syn::ImplItemFn) {
        self.function(&mut item.sig.constness, &mut item.block);
    }

    fn visit_trait_item_fn_mut(&mut self, item: &mut syn::TraitItemFn) {
        if let Some(block) = &mut item.default {
            self.function(&mut item.sig.constness, block);
        }
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Binary(_) => {
                let lets = has_let(expr);
                self.operands(expr, lets);
                if !lets {
                    self.chain(expr);
                }
            }
            Expr::Unary(unary) => {
                let wanted = self.take(Genre::UnaryOperator, unary.op.span());
                self.visit_expr_mut(&mut unary.expr);
                let operand = unary.expr.to_token_stream();
                for (id, _) in wanted {
                    self.choose(expr, id, operand.clone());
                }
            }
            Expr::Struct(_) => self.fields(expr),
            // The length is a constant.
            Expr::Repeat(repeat) => self.visit_expr_mut(&mut repeat.expr),
            Expr::Const(_) => {}
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.arm(arm);
    }

    // What is computed before the program runs has no switches.
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_trait_item_const_mut(&mut self, _: &mut syn::TraitItemConst) {}
    fn visit_variant_mut(&mut self, _: &mut syn::Variant) {}
}
