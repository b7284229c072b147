-- Functions hold nothing: they are made anew behind each migration.

-- Any appends in one transaction: those whose thread ends where its writer believes (branch, seq and tip; branch 0
-- for a thread that is yet to be made) and whose turn is still theirs. Works with the rights of `quire_tenant`, so one
-- statement is all that goes to the server. Told of are those that were refused (`stored` false, or null where the turn
-- is another's) and the threads that were made, by their place in the list; a last row tells the newest change.
-- Words are not written here: whoever searches makes those that are missing.
create or replace function quire.append(whose text, appends json, entries json)
returns table (owner integer, stored boolean, branch bigint, seq bigint, tip text)
language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    counted quire.tenants;
    asked record;
    accepted bigint[];
    written bigint;
    made boolean := false;
begin
    owner := 0;
    -- The row is held from here on; what is refused below gives its numbers back before anybody sees them.
    update quire.tenants t set change = change + json_array_length(entries) returning * into counted;
    counted.change := counted.change - json_array_length(entries);
    for asked in select * from json_to_recordset(appends) as given (
        thread text, branch bigint, seq bigint, tip text, "end" bigint, end_tip text, fence bigint)
    loop
        owner := owner + 1;
        branch := asked.branch;
        stored := null;
        if asked.fence = 0 or exists (
            select from quire.turns t where t.thread = asked.thread and t.fence = asked.fence
        ) then
            update quire.branches b set seq = asked."end", tip = decode(asked.end_tip, 'hex')
            where b.branch = asked.branch and b.seq = asked.seq and b.tip = decode(asked.tip, 'hex')
                and not b.nameless;
            stored := found;
            if asked.branch = 0 and not exists (select from quire.threads t where t.name = asked.thread) then
                stored := true;
                made := true;
                counted.branch := counted.branch + 1;
                branch := counted.branch;
                insert into quire.branches
                values (me, counted.branch, null, 0, asked."end", decode(asked.end_tip, 'hex'));
                insert into quire.threads values (me, asked.thread, counted.branch);
            end if;
        end if;
        accepted := accepted || case when stored then branch end;
        if stored is not true or asked.branch = 0 then
            branch := 0;
            seq := 0;
            tip := '';
            select b.branch, b.seq, encode(b.tip, 'hex') into branch, seq, tip
            from quire.threads t join quire.branches b using (tenant, branch) where t.name = asked.thread;
            return next;
        end if;
    end loop;
    insert into quire.entries
    select me, accepted[e.owner], e.seq, counted.change + row_number() over (order by e.owner, e.seq),
        decode(e.id, 'hex'), e.body, e.crc, e.token
    from json_to_recordset(entries) as e (
        owner integer, seq bigint, id text, body text, crc bigint, token bigint)
    where accepted[e.owner] is not null;
    get diagnostics written = row_count;
    if written <> json_array_length(entries) or made then
        update quire.tenants t set change = counted.change + written, branch = counted.branch;
    end if;
    owner := 0;
    seq := counted.change + written;
    return next;
end
$$;

-- What most appends are, in fewer steps: one entry behind the end of a thread that is there. Answers with the newest change;
-- with 0 where the thread ends elsewhere, with -1 where the turn is another's.
create or replace function quire.append_one(
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

-- Several appends to threads that are there, by columns: a list has a place for each append, or one for each entry.
-- Answers with the newest change and the places of those that were refused, below 0 where the turn is another's.
create or replace function quire.append_several(
    whose text, threads text[], branches bigint[], seqs bigint[], tips bytea[], fences bigint[], tokens bigint[],
    ends bigint[], end_tips bytea[], owners bigint[], places bigint[], ids bytea[], bodies text[], crcs bigint[])
returns bigint[] language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    asked bigint := cardinality(ids);
    newest bigint;
    accepted bigint[];
    lost bigint[];
    written bigint;
begin
    update quire.tenants t set change = change + asked returning change into newest;
    lost := array(
        select owner from unnest(threads, fences) with ordinality as given (thread, fence, owner)
        where fence <> 0 and not exists (
            select from quire.turns t where t.thread = given.thread and t.fence = given.fence));
    with moved as (
        update quire.branches b set seq = given."end", tip = given.end_tip
        from unnest(threads, branches, seqs, tips, ends, end_tips) with ordinality
            as given (thread, branch, seq, tip, "end", end_tip, owner), quire.threads t
        where t.name = given.thread and t.branch = given.branch and given.owner <> all (lost)
            and b.branch = given.branch and b.seq = given.seq and b.tip = given.tip
        returning given.owner
    )
    select array_agg(owner) into accepted from moved;
    insert into quire.entries
    select me, branches[e.owner], e.seq, newest - asked + row_number() over (order by e.place), e.id, e.body, e.crc,
        tokens[e.owner]
    from unnest(owners, places, ids, bodies, crcs) with ordinality as e (owner, seq, id, body, crc, place)
    where e.owner = any (accepted);
    get diagnostics written = row_count;
    if written <> asked then
        newest := newest - asked + written;
        update quire.tenants t set change = newest;
    end if;
    return newest || array(
        select case when owner = any (lost) then -owner else owner end
        from generate_series(1, cardinality(threads)) as owner where owner = any (accepted) is not true);
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
