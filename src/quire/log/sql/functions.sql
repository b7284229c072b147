-- Functions hold nothing: they are made anew behind each migration, and those of before go.
do $$
declare
    found regprocedure;
begin
    for found in select oid::regprocedure from pg_proc where pronamespace = 'quire'::regnamespace loop
        execute format('drop function %s', found);
    end loop;
end
$$;

-- What most appends are, in fewer steps: one entry behind the end of a thread that is there. Answers with the newest change;
-- with 0 where the thread ends elsewhere, with -1 where the turn is another's.
create function quire.append_one(
    whose text, thread text, branch bigint, seq bigint, tip bytea, fence bigint, token bigint, id bytea, body text,
    crc bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    newest bigint;
begin
    -- The row is held from here on; what is refused below gives its number back before anybody sees it.
    update quire.tenants t set change = t.change + 1 returning t.change into newest;
    if fence <> 0 then
        if not exists (select from quire.turns t where t.thread = append_one.thread and t.fence = append_one.fence) then
            update quire.tenants t set change = t.change - 1;
            return -1;
        end if;
    end if;
    update quire.branches b set seq = b.seq + 1, tip = append_one.id
    where b.branch = append_one.branch and b.seq = append_one.seq and b.tip = append_one.tip and not b.nameless;
    if not found then
        update quire.tenants t set change = t.change - 1;
        return 0;
    end if;
    insert into quire.entries values (me, append_one.branch, append_one.seq + 1, newest, append_one.id, append_one.body,
        append_one.crc, append_one.token);
    return newest;
end
$$;

-- Any appends in one transaction, by columns: a list has a place for each append, or one for each entry. Branch 0 is a thread
-- that is yet to be made. Answers with the newest change, and unless all were stored in threads that were there, with
-- the branch of each: 0 where the thread ends elsewhere, -1 where the turn is another's.
create function quire.append(
    whose text, threads text[], branches bigint[], seqs bigint[], tips bytea[], fences bigint[], tokens bigint[],
    ends bigint[], end_tips bytea[], owners bigint[], places bigint[], ids bytea[], bodies text[], crcs bigint[])
returns bigint[] language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    asked bigint := cardinality(ids);
    as_asked boolean := 0 <> all (branches);
    newest bigint;
    made bigint;
    moved bigint[];
    written bigint;
begin
    -- The row is held from here on; what is refused below gives its numbers back before anybody sees them.
    update quire.tenants t set change = change + asked returning change into newest;
    if 0 <> any (fences) then
        branches := array(
            select case when fence = 0 or exists (
                select from quire.turns t where t.thread = given.thread and t.fence = given.fence
            ) then branch else -1 end
            from unnest(threads, branches, fences) with ordinality as given (thread, branch, fence, place)
            order by place);
    end if;
    for place in 1 .. cardinality(threads) loop
        exit when as_asked;
        if branches[place] = 0 and not exists (select from quire.threads t where t.name = threads[place]) then
            update quire.tenants t set branch = branch + 1 returning branch into made;
            insert into quire.branches (tenant, branch) values (me, made);
            insert into quire.threads values (me, threads[place], made);
            branches[place] := made;
        end if;
    end loop;
    -- Places are looked up, not joined: a join would be planned before anything is known of the table.
    with found as (
        update quire.branches b
        set seq = ends[array_position(branches, b.branch)], tip = end_tips[array_position(branches, b.branch)]
        where b.branch = any (branches) and b.seq = seqs[array_position(branches, b.branch)]
            and b.tip = tips[array_position(branches, b.branch)] and not b.nameless
        returning b.branch
    )
    select coalesce(array_agg(branch), '{}') into moved from found;
    insert into quire.entries
    select me, branches[e.owner], e.seq, newest - asked + row_number() over (order by e.place), e.id, e.body, e.crc,
        tokens[e.owner]
    from unnest(owners, places, ids, bodies, crcs) with ordinality as e (owner, seq, id, body, crc, place)
    where branches[e.owner] = any (moved);
    get diagnostics written = row_count;
    if written <> asked then
        newest := newest - asked + written;
        update quire.tenants t set change = newest;
    end if;
    if as_asked and cardinality(moved) = cardinality(threads) then
        return array[newest];
    end if;
    return newest || array(
        select case when branch = any (moved) then branch else least(branch, 0) end
        from unnest(branches) with ordinality as given (branch, place) order by place);
end
$$;

do $$
declare
    found text;
begin
    grant create on schema quire to quire_tenant;
    for found in select proname from pg_proc where pronamespace = 'quire'::regnamespace loop
        execute format('alter function quire.%I owner to quire_tenant', found);
        execute format('revoke execute on function quire.%I from public', found);
    end loop;
    revoke create on schema quire from quire_tenant;
end
$$;
